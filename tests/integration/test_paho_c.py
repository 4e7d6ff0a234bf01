"""Paho C over WebSockets, compiled here: many packets at once, in both directions.

Its WebSocket layer takes one MQTT packet a message, and hangs or crashes on more.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

HEADERS = [Path("/usr/include/MQTTClient.h"), Path("/usr/local/include/MQTTClient.h")]
COMPILER = shutil.which("cc")
MESSAGES = 500

pytestmark = [
    pytest.mark.ci,
    pytest.mark.once,
    pytest.mark.skipif(
        COMPILER is None or not any(map(Path.exists, HEADERS)),
        reason="there is no Paho C: `make mosquitto` installs it",
    ),
]

PROGRAM = r"""
#include <MQTTClient.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int code, const char *what)
{
    if (code != MQTTCLIENT_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int count = atoi(argv[2]), large = atoi(argv[3]);
    MQTTClient client;
    MQTTClient_connectOptions options = MQTTClient_connectOptions_initializer_ws;
    options.cleansession = 1;
    options.maxInflightMessages = 100;
    int made = MQTTClient_create(&client, argv[1], "paho-c", MQTTCLIENT_PERSISTENCE_NONE, NULL);
    check(made, "create");
    check(MQTTClient_connect(client, &options), "connect");
    check(MQTTClient_subscribe(client, "paho/#", 1), "subscribe");
    MQTTClient_deliveryToken token;
    char topic[64], *payload = calloc(1, (size_t)large);
    for (int i = 0; i < count; i++) {
        int length = i == count / 2 ? large : snprintf(payload, 32, "%d", i);
        snprintf(topic, sizeof topic, "paho/%d", i);
        check(MQTTClient_publish(client, topic, length, payload, 1, 0, &token), "publish");
    }
    check(MQTTClient_waitForCompletion(client, token, 60000), "confirm");
    for (int i = 0; i < count; i++) {
        char *name = NULL;
        int length = 0;
        MQTTClient_message *message = NULL;
        check(MQTTClient_receive(client, &name, &length, &message, 60000), "receive");
        snprintf(topic, sizeof topic, "paho/%d", i);
        if (!message || strcmp(name, topic) || (i == count / 2 && message->payloadlen != large)) {
            fprintf(stderr, "message %d is %s\n", i, name);
            return 1;
        }
        MQTTClient_freeMessage(&message);
        MQTTClient_free(name);
    }
    check(MQTTClient_disconnect(client, 1000), "disconnect");
    MQTTClient_destroy(&client);
    printf("%d messages\n", count);
    return 0;
}
"""


def test_messages_over_a_websocket_come_whole_and_in_order(tmp_path: Path) -> None:
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(PROGRAM)
    assert COMPILER is not None
    compiled = subprocess.run(
        [COMPILER, str(source), "-o", str(program), "-lpaho-mqtt3c"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    with BrokerProcess(tmp_path / "data") as broker:
        url = f"ws://127.0.0.1:{broker.port('all')}/ws"
        run = subprocess.run(
            [str(program), url, str(MESSAGES), "400000"],
            capture_output=True,
            text=True,
            timeout=4 * WAIT_S,
            check=False,
        )
    assert (run.returncode, run.stdout) == (0, f"{MESSAGES} messages\n"), run.stderr
