"""What reaches running brokers without a restart: settings, users, certificates."""

from __future__ import annotations

import base64
import datetime
import hashlib
from typing import Any

import pytest

from vespiary_operator import certificates, live_files
from vespiary_operator.actions import Apply
from vespiary_operator.builders import settings_map
from vespiary_operator.builders.pod_template import LIVE_PATH
from vespiary_operator.observation import (
    BrokerAnswer,
    ConfigurationAnswer,
    Credentials,
    Observed,
)
from vespiary_operator.rollout import Rollout
from vespiary_spec.resources import Broker
from vespiary_spec.status import ConditionStatus
from vespiary_testkit.broker_resources import broker
from vespiary_testkit.certificates import Authority, Signed, self_signed

USERS = "admin SCRAM\n"
DONE = Rollout(1, True, "Done.")
NOW = "2026-01-02T00:00:00Z"
AUTHORITY = Authority()


def pod(**annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "orders-0", "uid": "p", "annotations": annotations},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def taken(wanted: Broker, **changes: Any) -> ConfigurationAnswer:
    """Return the answer of a broker that has taken everything, but for what is changed."""
    digest = settings_map.digest(settings_map.texts(wanted)[1])
    values: dict[str, Any] = {
        "digests": {LIVE_PATH: digest},
        "users_digest": hashlib.sha256(USERS.encode()).hexdigest(),
    }
    return ConfigurationAnswer(**(values | changes))


def seen(wanted: Broker, told: ConfigurationAnswer | None, **changes: Any) -> Observed:
    children: dict[tuple[str, str], Any] = {
        ("ConfigMap", "orders-live-config"): settings_map.live_map(wanted)
    }
    values: dict[str, Any] = {
        "children": children,
        "pods": (pod(),),
        "credentials": Credentials(users_file=USERS, admin_password="secret"),
        "answers": {"orders-0": BrokerAnswer(configuration=told)},
    }
    return Observed(broker=wanted, **(values | changes))


SETTINGS = {"addressSettings": [{"match": "#", "maxDeliveryAttempts": 3}]}


def test_the_two_config_maps_are_the_whole_and_only_one_is_named_after_its_content() -> None:
    plain, changed = broker(), broker(**SETTINGS, config={"logLevel": "debug"})
    fixed, live = settings_map.texts(changed)
    assert "max-delivery-attempts: 3" in live
    assert "log-level: debug" in live
    assert "max-delivery-attempts" not in fixed
    assert settings_map.config_map(plain) == settings_map.config_map(changed)
    assert settings_map.live_map(plain)["data"] != settings_map.live_map(changed)["data"]
    restart = broker(config={"journalMinFiles": 3})
    assert settings_map.config_map(plain) != settings_map.config_map(restart)
    assert settings_map.live_map(plain) == settings_map.live_map(restart)


def test_a_kubelet_is_told_once_and_only_when_it_can_read_what_is_new() -> None:
    wanted = broker(**SETTINGS)
    behind = taken(wanted, digests={LIVE_PATH: "old"})
    (nudge,) = live_files.nudges(seen(wanted, behind))
    assert isinstance(nudge, Apply)
    annotations = nudge.manifest["metadata"].pop("annotations")
    assert nudge.manifest == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "orders-0", "namespace": "ns", "uid": "p"},
    }
    assert not list(live_files.nudges(seen(wanted, behind, pods=(pod(**annotations),))))
    assert not list(live_files.nudges(seen(wanted, taken(wanted))))
    assert not list(live_files.nudges(seen(wanted, None)))
    old = {("ConfigMap", "orders-live-config"): settings_map.live_map(broker())}
    assert not list(live_files.nudges(seen(wanted, behind, children=old)))
    assert live_files.is_behind(seen(wanted, behind))
    assert not live_files.is_behind(seen(wanted, taken(wanted)))


def test_every_broker_has_to_report_what_it_should_run_with() -> None:
    wanted = broker(**SETTINGS)

    def said(told: ConfigurationAnswer | None, **changes: Any) -> tuple[str, str, str]:
        found = live_files.applied(seen(wanted, told, **changes), None, DONE, is_complete=True)
        return str(found[0]), found[1], found[2]

    assert said(taken(wanted))[:2] == ("True", "Applied")
    assert said(taken(wanted, digests={LIVE_PATH: "old"}))[:2] == ("False", "Reloading")
    state, reason, sentence = said(
        taken(wanted, digests={LIVE_PATH: "old"}, refused="the queue q has consumers")
    )
    assert (state, reason) == ("False", "Refused")
    assert "orders-0 refuses the new settings" in sentence
    assert "the queue q has consumers" in sentence
    assert "users" in said(taken(wanted, users_digest="old"))[2]
    assert said(None)[:2] == ("Unknown", "NotReported")
    speaking = pod(**{"vespiary.dev/admin-tls": "cert"})
    silent = said(None, answers={}, pods=(speaking,))
    assert silent[:2] == ("Unknown", "NotReported")
    assert "a certificate that belongs to the Secret cert" in silent[2]
    assert "certificate" not in said(None, answers={})[2]
    nobody = Credentials(users_file=USERS)
    assert "no user `admin`" in said(None, answers={}, credentials=nobody)[2]
    starting = {"metadata": {"name": "orders-0"}, "status": {}}
    assert said(taken(wanted), pods=(starting,))[:2] == ("False", "Starting")


def test_settings_that_wait_for_a_restart_are_named() -> None:
    old, wanted = broker(), broker(config={"journalMinFiles": 3, "journalMaxIo": 7})
    before = settings_map.config_map(old)
    name = before["metadata"]["name"]
    running = pod() | {"spec": {"volumes": [{"name": "config", "configMap": {"name": name}}]}}
    moving = Rollout(0, False, "Broker 0 is restarted with the new settings.")
    observed = seen(wanted, None, pods=(running,), children={("ConfigMap", name): before})
    found = live_files.applied(observed, None, moving, is_complete=False)
    assert found[:2] == (ConditionStatus.FALSE, "RollingOut")
    assert found[2].endswith("Waiting for a restart: journalMinFiles, journalMaxIo.")


# --- certificates -------------------------------------------------------------------------------


def secret(signed: Signed, **changes: bytes) -> dict[str, Any]:
    data = {"tls.crt": signed.certificate, "tls.key": signed.key}
    data |= {name.replace("_", "."): value for name, value in changes.items()}
    return {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}


def with_tls(found: dict[str, Any] | None, **tls: Any) -> Observed:
    wanted = broker(tls={"secretName": "cert", **tls})
    return seen(wanted, taken(wanted), tls_secrets={"cert": found})


GOOD = AUTHORITY.sign("orders.example", days=90)


def test_a_good_certificate_and_its_end() -> None:
    observed = with_tls(secret(GOOD))
    now = "2000-01-01T00:00:00Z"
    assert certificates.valid(observed, now=now)[:2] == (ConditionStatus.TRUE, "Valid")
    found = certificates.statuses(observed)
    assert [each.acceptor for each in found] == ["all", "amqp", "mqtt", "stomp"]
    assert found[0].secret_name == "cert"
    assert found[0].fingerprint == GOOD.fingerprint
    end = found[0].not_after
    assert certificates.valid(observed, now=end)[:2] == (ConditionStatus.FALSE, "Expired")
    assert "Renew it in the Secret" in certificates.valid(observed, now=end)[2]
    assert certificates.valid(seen(broker(), None), now=NOW)[:2] == (ConditionStatus.TRUE, "NoTls")


def test_the_end_is_near() -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    observed = with_tls(secret(AUTHORITY.sign("orders.example", days=10)))
    state, reason, sentence = certificates.valid(observed, now=now)
    assert (state, reason) == (ConditionStatus.TRUE, "ExpiresSoon")
    assert "in 10 days" in sentence


@pytest.mark.parametrize(
    ("found", "tls", "said"),
    [
        (None, {}, "The Secret cert does not exist"),
        ({"data": {}}, {}, "has no tls.crt and no tls.key"),
        (secret(GOOD), {"requireClientCertificate": True}, "has no ca.crt"),
        (secret(GOOD), {"requestClientCertificate": True}, "has no ca.crt"),
        (secret(GOOD, tls_crt=b"x"), {}, "tls.crt of the Secret cert is no certificate"),
        (secret(GOOD, tls_key=b"x"), {}, "tls.key of the Secret cert is no key"),
        (secret(GOOD, tls_key=AUTHORITY.sign("b").key), {}, "is not the key of its tls.crt"),
        ({"data": {"tls.crt": "!"}}, {}, "holds no base64"),
    ],
)
def test_what_cannot_be_used_is_named(found: Any, tls: dict[str, Any], said: str) -> None:
    state, reason, sentence = certificates.valid(with_tls(found, **tls), now=NOW)
    assert (state, reason) == (ConditionStatus.FALSE, "SecretUnusable")
    assert said in sentence
    assert "kubectl create secret tls cert" in sentence


def test_the_certificate_of_the_http_port_is_looked_at_as_those_of_acceptors_are() -> None:
    wanted = broker(admin={"tls": {"secretName": "cert"}})

    def found(signed: dict[str, Any], told: str) -> Observed:
        said = taken(wanted, certificates={"http": told})
        return seen(wanted, said, tls_secrets={"cert": signed})

    assert live_files.is_behind(found(secret(GOOD), "old"))
    good = found(secret(GOOD), GOOD.fingerprint)
    assert not live_files.is_behind(good)
    (status,) = certificates.statuses(good)
    assert (status.acceptor, status.secret_name) == ("http", "cert")
    said = certificates.valid(good, now="2000-01-01T00:00:00Z")[2]
    assert "certificate of the HTTP port (Secret cert)" in said
    wrong = certificates.valid(found({"data": {}}, ""), now=NOW)
    assert wrong[1] == "SecretUnusable"
    assert wrong[2].startswith("HTTP port: The Secret cert has no tls.crt")


def test_a_certificate_that_nobody_can_look_at_is_named() -> None:
    signed = self_signed()
    unusable = secret(signed)
    wanted = broker(admin={"tls": {"secretName": "cert"}})
    found = certificates.valid(seen(wanted, None, tls_secrets={"cert": unusable}), now=NOW)
    assert found[:2] == (ConditionStatus.FALSE, "SecretUnusable")
    assert "is for no host" in found[2]
    assert "subjectAltNames" in found[2]
    wanted = broker(acceptors=[{"name": "a", "port": 1, "tls": {"secretName": "cert"}}])
    found = certificates.valid(
        seen(wanted, None, tls_secrets={"cert": unusable}), now="2000-01-01T00:00:00Z"
    )
    assert found[1] == "Valid", "what clients look at is theirs"


def test_a_changed_certificate_is_behind_until_the_broker_shows_it() -> None:
    observed = with_tls(secret(GOOD))
    assert live_files.is_behind(observed)
    wanted = observed.broker
    told = taken(
        wanted, certificates=dict.fromkeys(("all", "amqp", "mqtt", "stomp"), GOOD.fingerprint)
    )
    assert not live_files.is_behind(seen(wanted, told, tls_secrets={"cert": secret(GOOD)}))
