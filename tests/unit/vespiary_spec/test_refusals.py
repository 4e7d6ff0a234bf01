"""Known names that do not work: refused by name, nowhere offered, one line to move."""

from __future__ import annotations

import re

import pytest

from vespiary_spec import refusals, resources, settings
from vespiary_spec.conversion import convert, usable_fields
from vespiary_spec.errors import UnsupportedSetting
from vespiary_spec.gen import reference
from vespiary_spec.gen.schema import Target, struct_schema
from vespiary_spec.model import Spelling, fields_of, kebab
from vespiary_spec.resources import BrokerNodeTuningSpec, BrokerSpec
from vespiary_spec.settings import AddressSettings, BrokerSettings, Configuration


def structs() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (settings, resources):
        found |= {name: kind for name, kind in vars(module).items() if isinstance(kind, type)}
    return found


@pytest.mark.parametrize("owner", [*refusals.NOT_YET, *(o for o, _ in refusals.NOT_YET_VALUES)])
def test_every_refusal_names_a_struct_of_the_model(owner: str) -> None:
    assert owner in structs()


def test_every_refused_value_names_a_field() -> None:
    for owner, name in refusals.NOT_YET_VALUES:
        assert name in {kebab(field.name) for field in fields_of(structs()[owner])}


def test_names_are_kebab_case() -> None:
    for names in refusals.NOT_YET.values():
        for name in names:
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name), name


# The reference system's names in the chapters on persistence, paging and addresses that this
# project set out to cover; each either works or is refused by name.
CHAPTER_NAMES = """
persistence-enabled bindings-directory create-bindings-dir journal-directory create-journal-dir
node-manager-lock-directory journal-type journal-datasync journal-sync-transactional
journal-sync-non-transactional journal-file-size journal-min-files journal-pool-files
journal-max-io journal-buffer-timeout journal-buffer-size journal-compact-min-files
journal-compact-percentage journal-file-open-timeout journal-max-attic-files
journal-device-block-size journal-lock-acquisition-timeout log-journal-write-rate
journal-retention-directory id-cache-size persist-id-cache
persist-delivery-count-before-delivery max-redelivery-records large-messages-directory
large-message-sync min-large-message-size transaction-timeout transaction-timeout-scan-period
max-disk-usage min-disk-free disk-scan-period critical-analyzer critical-analyzer-timeout
critical-analyzer-check-period critical-analyzer-policy paging-directory global-max-size
global-max-messages page-sync-timeout page-max-concurrent-io read-whole-page purge-page-folders
""".split()  # noqa: SIM905

ADDRESS_NAMES = """
max-size-bytes max-size-messages page-size-bytes address-full-policy page-max-cache-size
max-read-page-bytes max-read-page-messages prefetch-page-bytes prefetch-page-messages
page-limit-bytes page-limit-messages page-full-policy max-size-bytes-reject-threshold
disk-full-policy dead-letter-address auto-create-dead-letter-resources send-to-dla-on-no-route
max-delivery-attempts expiry-address auto-create-expiry-resources expiry-delay min-expiry-delay
max-expiry-delay no-expiry redelivery-delay max-redelivery-delay
redelivery-delay-multiplier redelivery-collision-avoidance-factor dead-letter-queue-prefix
dead-letter-queue-suffix expiry-queue-prefix expiry-queue-suffix default-last-value-key
default-non-destructive default-exclusive-queue default-ring-size default-purge-on-no-consumers
default-consumers-before-dispatch default-delay-before-dispatch default-group-rebalance
default-group-rebalance-pause-dispatch default-group-buckets default-group-first-key
default-consumer-window-size queue-prefetch slow-consumer-threshold-measurement-unit
auto-delete-queues-skip-usage-check auto-delete-addresses-skip-usage-check
initial-queue-buffer-size management-message-attribute-size-limit management-browse-page-size
default-last-value-queue default-max-consumers retroactive-message-count auto-create-queues
auto-create-addresses auto-delete-queues auto-delete-addresses auto-delete-created-queues
auto-delete-queues-delay auto-delete-queues-message-count auto-delete-addresses-delay
default-queue-routing-type default-address-routing-type config-delete-queues
config-delete-addresses config-delete-diverts slow-consumer-threshold slow-consumer-policy
slow-consumer-check-period redistribution-delay message-counter-history-day-limit enable-metrics
enable-ingress-timestamp id-cache-size
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", CHAPTER_NAMES)
def test_every_name_of_the_chapters_works_or_is_refused_by_name(name: str) -> None:
    usable = {
        field.spelled(Spelling.KEBAB) for field in usable_fields(Configuration, Spelling.KEBAB)
    }
    if name not in usable:
        with pytest.raises(UnsupportedSetting, match=r"not supported yet|has no meaning here: \w+"):
            convert({name: 1}, Configuration, spelling=Spelling.KEBAB)


@pytest.mark.parametrize("name", ADDRESS_NAMES)
def test_every_address_setting_works_or_is_refused_by_name(name: str) -> None:
    usable = {f.spelled(Spelling.KEBAB) for f in usable_fields(AddressSettings, Spelling.KEBAB)}
    if name not in usable:
        with pytest.raises(UnsupportedSetting, match=r"not supported yet|has no meaning here"):
            convert({"address-settings": {"#": {name: 1}}}, Configuration, spelling=Spelling.KEBAB)


@pytest.mark.parametrize(("old", "now"), refusals.RENAMED[refusals.ADDRESS_SETTINGS].items())
def test_a_deprecated_name_is_refused_with_the_one_to_say(old: str, now: str) -> None:
    usable = {f.spelled(Spelling.KEBAB) for f in usable_fields(AddressSettings, Spelling.KEBAB)}
    assert now in usable
    assert old not in usable
    with pytest.raises(UnsupportedSetting) as caught:
        convert({"address-settings": {"#": {old: True}}}, Configuration, spelling=Spelling.KEBAB)
    assert str(caught.value).startswith(f"address-settings.#.{old}: a deprecated name. Say `{now}`")
    assert f"`{old}` | `{now}`" in reference.configuration()


@pytest.mark.parametrize("name", [*refusals.POINTLESS[refusals.BROKER]])
def test_what_has_no_meaning_here_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UnsupportedSetting) as caught:
        convert({name: 1}, Configuration, spelling=Spelling.KEBAB)
    assert refusals.POINTLESS[refusals.BROKER][name] in str(caught.value)
    assert "not supported yet" not in str(caught.value)
    assert name in reference.configuration()


def test_one_line_withdraws_a_setting_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    withdrawn = refusals.NOT_YET[refusals.BROKER] | {"journal-pool-files": "pools of files"}
    monkeypatch.setitem(refusals.NOT_YET, refusals.BROKER, withdrawn)
    with pytest.raises(UnsupportedSetting, match="pools of files"):
        convert({"journal-pool-files": 3}, Configuration, spelling=Spelling.KEBAB)
    assert "journalPoolFiles" not in struct_schema(BrokerSettings, Target.CRD)["properties"]
    assert "journalPoolFiles" not in reference.configuration()


def test_no_refused_name_is_offered_in_a_schema() -> None:
    def names(schema: dict[str, object]) -> set[str]:
        found: set[str] = set()
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                found |= set(value)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    found |= names(part)
        return found

    offered = names(struct_schema(BrokerSpec, Target.CRD))
    offered |= names(struct_schema(BrokerNodeTuningSpec, Target.CRD))
    for missing in (
        "autoCreateJmsQueues",
        "redistributionDelay",
    ):
        assert missing not in offered
    assert {"journalMaxIo", "autoCreateQueues", "maxBodySize"} <= offered
