"""Each point under "What to know" on the pages of stock clients has tests that show it.

A point that is new, or begins otherwise, has to be entered here; what no test can show says why.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.once

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((ROOT / "docs/howto/clients").glob("*.md"))
BY_HAND: Final = "by hand: "
_DROPPED: Final = "test_a_message_without_a_subscription_is_dropped"
_ACKNOWLEDGES: Final = "test_go_acknowledges_when_handlers_have_returned"
_WEBSOCKETS: Final = "test_stompjs_sends_receives_and_acknowledges"
_NO_CALLS: Final = f"{BY_HAND}the protocol, or the library, has none"
SHOWN: Final[dict[str, dict[str, str]]] = {
    "aiomqtt": {
        "Messages are acknowledged": "test_aiomqtt_acknowledges_before_anybody_has_looked",
        "It does not connect": "test_aiomqtt_stays_away_and_its_session_keeps_what_comes",
        "A message that nobody": _DROPPED,
        "On Windows": f"{BY_HAND}aiomqtt's own page; there is no Windows here",
        "MQTT has no": _NO_CALLS,
    },
    "go-amqp": {
        "A header is not": (
            "test_go_amqp_waits_for_the_confirm_and_makes_no_durable_header "
            "test_without_durable_a_message_is_accepted_and_gone_with_the_broker"
        ),
        "`Send` waits": (
            "test_go_amqp_waits_for_the_confirm_and_makes_no_durable_header "
            "test_go_amqp_sends_with_a_receipt_and_goes_on"
        ),
        "In the default": "test_go_amqp_waits_for_its_acceptance_in_mode_second",
        "It does not connect": "test_go_amqp_stays_away test_go_amqp_sends_receives_and_settles",
        "It has no calls": _NO_CALLS,
    },
    "mqtt.js": {
        "Handlers that wait": (
            "test_mqtt_js_waits_for_no_handler_that_waits "
            "test_mqtt_js_acknowledges_when_done_is_called"
        ),
        "Register `message`": "test_mqtt_js_has_what_waited_before_it_subscribes",
        "It connects again": "test_mqtt_js_comes_back_and_sends_again",
        "In browsers": "test_mqtt_js",
        "MQTT has no": _NO_CALLS,
    },
    "paho-mqtt": {
        "MQTT 3.1.1": "test_paho_for_3_1_1_takes_nothing_of_5",
        "A message that nobody": _DROPPED,
        "`wait_for_publish`": (
            "test_paho_waits_for_the_confirm "
            "test_paho_says_that_it_was_not_connected_and_sends_it_later"
        ),
        "Without `manual_ack": "test_paho_acknowledges_when_on_message_returns",
        "`loop_start` connects": (
            "test_paho_comes_back_and_sends_again_what_was_not_confirmed "
            "test_paho_comes_back_to_a_broker_that_was_restarted"
        ),
        "MQTT has no": _NO_CALLS,
    },
    "paho.golang": {
        "`autopaho` connects": f"{_ACKNOWLEDGES} test_paho_alone_stays_away",
        "`Publish` waits": (
            "test_autopaho_waits_for_the_confirm_over_connections_and_fails_without_one "
            "test_autopaho_keeps_in_files_what_waits_for_a_connection "
            "test_autopaho_keeps_in_memory_what_was_sent_and_not_confirmed"
        ),
        "Without `EnableManual": _ACKNOWLEDGES,
        "A message that nobody": f"{_DROPPED} test_a_session_ends_when_its_time_is_over",
        "MQTT has no": _NO_CALLS,
    },
    "paho.mqtt.golang": {
        "A handler that blocks": "test_paho_mqtt_golang_is_held_up_by_a_handler",
        "It connects again": (
            "test_paho_mqtt_golang_does_not_try_the_first_connection_again "
            "test_paho_mqtt_golang_comes_back_to_its_session"
        ),
        "Without `SetAutoAck": (
            f"{_ACKNOWLEDGES} test_paho_mqtt_golang_leaves_without_a_confirm "
            "test_paho_mqtt_golang_leaves_with_its_acknowledgement"
        ),
        "Its store": "test_paho_mqtt_golang_keeps_what_was_not_confirmed_in_files",
        "It speaks no MQTT 5": _NO_CALLS,
    },
    "python-qpid-proton": {
        "Without `durable": "test_without_durable_a_message_is_accepted_and_gone_with_the_broker",
        "pip builds": f"{BY_HAND}built with and without Cyrus SASL",
        "Built without Cyrus": (
            "test_proton_sends_the_password_in_clear_where_it_was_built_without_cyrus"
        ),
        "`send` waits": "test_proton_waits_for_each_confirm test_transactions",
        "A refused link": (
            "test_proton_tells_that_a_message_was_refused_and_where_to_look_for_the_reason "
            "test_a_producer_that_may_not_make_its_queue"
        ),
        "A `str` is text": "test_a_cell test_a_body_that_is_a_value_goes_out_as_its_sections",
        "Transactions:": "test_transactions",
    },
    "qpid-jms": {
        "For `javax.jms`": "test_the_page_names_the_versions_that_are_tested",
        "`createQueue": "test_stomp_asks_and_jms_answers",
        "`failover:": "whatWasConfirmedIsThere consumersAndDurableSubscriptionsGoOn",
        "A consumer takes": "withoutPrefetchNothingIsHeldBack consumersShareFairly",
        "Acknowledgement in": "acknowledgeTakesAllThatTheSessionHasReceived",
        "Transactions are": "aTransactedContextCommitsAndRollsBack",
    },
    "rhea": {
        "Without `autoaccept": "test_rhea_accepts_by_itself_unless_it_is_told",
        "It connects again": "test_rhea_comes_back_with_its_links_and_does_not_send_again",
        "`rhea.types`": "test_rhea_wraps_types",
        "Through a WebSocket": "test_rhea",
        "Transactions you": _NO_CALLS,
    },
    "stomp.py": {
        "`connect` without": "test_stomp_py_waits_for_the_login_if_it_is_told_to",
        "Without `persistent": f"{BY_HAND}it promises nothing",
        "Callbacks run": (
            "test_stomp_py_calls_back_in_a_thread_of_its_own_which_hears_no_heart_beats_meanwhile"
        ),
        "`heartbeats=(0, 0)`": (
            "test_stomp_py_sends_no_heart_beats_and_stays_away_unless_it_is_told "
            "test_stomp_py_comes_back_by_on_disconnected"
        ),
        "Bodies come": "test_stomp_py_has_texts_unless_it_is_told",
        "Transactions:": "test_transactions",
    },
    "stompjs": {
        "The path is": _WEBSOCKETS,
        "It connects again": "test_stompjs_comes_back_and_subscribes_in_on_connect",
        "Heart-beats are": "test_stompjs_comes_back_and_subscribes_in_on_connect",
        "`message.binaryBody`": _WEBSOCKETS,
        "Transactions:": "test_stompjs_commits_and_aborts",
    },
}


def points_of(page: Path) -> list[str]:
    """Return the points of a page's last section."""
    section = page.read_text().partition("## What to know\n")[2]
    return re.findall(r"^- (.*)", section, re.M)


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_each_point_is_shown(page: Path) -> None:
    points, shown = points_of(page), SHOWN[page.stem]
    assert points
    begins = [[begin for begin in shown if point.startswith(begin)] for point in points]
    assert [len(one) for one in begins] == [1] * len(points), (points, begins)
    assert {one[0] for one in begins} == set(shown)


def test_what_is_named_is_there() -> None:
    sources = [
        *(ROOT / "tests/integration").glob("test_*.py"),
        *(ROOT / "tests/jms").rglob("*Test.java"),
    ]
    there = {
        name
        for source in sources
        for name in re.findall(r"(?:def|void) (\w+)\(", source.read_text())
    }
    for points in SHOWN.values():
        for tests in points.values():
            assert tests.startswith(BY_HAND) or not set(tests.split()) - there, tests
