"""The example of docs/howto/mqtt.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from vespiary_testkit.broker_calls import metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "mqtt.md"


@pytest.mark.ci
def test_the_example_prints_what_it_published_and_it_is_there_after_a_kill(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    code = example.replace("1883", str(broker.port("mqtt")))
    assert code != example
    end = "\nimport time\ndeadline = time.monotonic() + 20\n" + (
        "while not got and time.monotonic() < deadline:\n    time.sleep(0.05)\n"
        "client.disconnect()\nclient.loop_stop()\n"
    )
    told = code.replace("print(message.topic", "got.append(1) or print(message.topic")
    done = subprocess.run(
        [sys.executable, "-c", "got = []\n" + told + end],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "sensors/kitchen/temperature 21.5\n"
    broker.kill()
    with broker:
        again = told.replace('publish("sensors/kitchen/temperature"', 'publish("elsewhere"')
        place = f'connect("127.0.0.1", {broker.port("mqtt")})'
        again = re.sub(r'connect\("127.0.0.1", \d+\)', place, again)
        done = subprocess.run(
            [sys.executable, "-c", "got = []\n" + again + end],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout == "sensors/kitchen/temperature 21.5\n", "it was retained"


def test_metrics_tell_of_sessions_and_retained_messages(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id="c", protocol=mqtt.MQTTv311,
            clean_session=False,
        )  # fmt: skip
        client.connect("127.0.0.1", broker.port("mqtt"))
        client.loop_start()
        client.publish("a", "b", qos=1, retain=True).wait_for_publish(20)
        told = metrics(broker)
        assert told['vespiary_mqtt_sessions{state="connected"}'] == 1
        assert told["vespiary_mqtt_retained_messages"] == 1
        assert told['vespiary_connections{listener="mqtt",protocol="MQTT 3.1.1"}'] == 1
        client.disconnect()
        client.loop_stop()
        wait_for(lambda: metrics(broker)['vespiary_mqtt_sessions{state="away"}'] == 1)
