"""Define and load all settings of a broker: command line flags override the environment, which overrides a TOML file.

The environment variable of `section.key` is `QUARRY_SECTION_KEY`. Settings are checked once, when the broker starts;
some can be changed afterwards (`server.settings.live_settings`). The descriptions here are the documentation:
`docs/settings.md` is tested against them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, Self

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError, TomlConfigSettingsSource

from quarry_mq.protocol.limits import WireLimits
from quarry_mq.server.addresses import Address
from quarry_mq.server.settings.sections import (
    OFF,
    BrokerSection,
    ClusterSection,
    ConsumeQueueSection,
    DeliverySection,
    ExpirySection,
    GroupsSection,
    IndexSection,
    LimitsSection,
    LiteSection,
    LogSection,
    MetricsSection,
    NetworkSection,
    RemotingSection,
    ReplicationSection,
    Section,
    SecuritySection,
    StoreSection,
    TopicsSection,
    TracingSection,
    TransactionsSection,
    VerificationSection,
    is_loopback,
)
from quarry_mq.store.errors import Invalid
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePlaces
from quarry_mq.store.retention import ExpirySettings
from quarry_mq.store.security.sealer import Sealer, read_keys
from quarry_mq.store.settings import RECORD_OVERHEAD_MAX, IndexSettings, StoreSettings

ENVIRONMENT_PREFIX: Final = "QUARRY_"

SERVICE_LINK: Final = re.compile(r"service_(host|port(_.*)?)|port(_.*)?")
"""Matches variables, less `QUARRY_SECTION_`, that Kubernetes sets in every pod for a Service `quarry-<section>`."""


ANY_SERVICE_LINK: Final = re.compile(rf"(.*_)?({SERVICE_LINK.pattern})")
"""Matches variables, less `QUARRY_`, that Kubernetes sets for a Service of any name that begins with `quarry`."""

CONFIG_VARIABLE: Final = "QUARRY_CONFIG"
"""The variable that names the settings file (`quarry serve`)."""

OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "QUARRY_CONTEXT", "QUARRY_CONTEXTS"})
"""Variables with our prefix that are not settings of a broker but for the commands."""


FILE_TABLE: Final = re.compile(r"\s*\[\s*([\w.\"' -]+?)\s*\]")
FILE_KEY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=")
NEAR_RATIO_MIN: Final = 0.75
"""The similarity, between 0 and 1, from which on a known name is offered for an unknown one."""


LISTENING: Final = (
    "network.listen",
    "network.tls_listen",
    "network.admin",
    "network.http",
    "network.console",
    "network.rocketmq_ha",
    "remoting.listen",
    "remoting.names_listen",
    "remoting.fast_listen",
)
"""The settings that name an address where a broker listens."""

_LEFT_OUT_IF_TAKEN: Final = frozenset({"network.console", "remoting.listen", "remoting.names_listen"})


class UnknownOperators(Enum):
    """Says which operators are served without proof of who they are."""

    NONE = "none"
    OF_THIS_MACHINE = "of this machine"
    ALL = "all"


class SettingsInvalid(Invalid):
    """Settings, their file or their environment variables are wrong.

    The message is one line with all mistakes; each names its key, and the line of the file or the variable that has it.
    """


@dataclass(frozen=True, slots=True)
class ValueSources:
    """Hold the sources of values that are not defaults. Settings with equal values are equal whatever their sources."""

    by_key: dict[str, str] = field(default_factory=dict, compare=False)


class BrokerSettings(Section):
    """Hold a broker's settings, frozen. The constructor uses defaults; `load_settings` reads file and environment."""

    store: StoreSection = StoreSection()
    consume_queue: ConsumeQueueSection = ConsumeQueueSection()
    index: IndexSection = IndexSection()
    expiry: ExpirySection = ExpirySection()
    verification: VerificationSection = VerificationSection()
    network: NetworkSection = NetworkSection()
    remoting: RemotingSection = RemotingSection()
    broker: BrokerSection = BrokerSection()
    cluster: ClusterSection = ClusterSection()
    replication: ReplicationSection = ReplicationSection()
    topics: TopicsSection = TopicsSection()
    groups: GroupsSection = GroupsSection()
    delivery: DeliverySection = DeliverySection()
    transactions: TransactionsSection = TransactionsSection()
    lite: LiteSection = LiteSection()
    limits: LimitsSection = LimitsSection()
    security: SecuritySection = SecuritySection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    tracing: TracingSection = TracingSection()

    _sources: ValueSources = PrivateAttr(default_factory=ValueSources)

    @model_validator(mode="after")
    def _members_reach_it(self) -> Self:
        network = self.network
        if self.cluster.is_on and network.advertise is None and Address.parse(network.listen).is_unspecified:
            raise ValueError(
                f"cluster needs network.advertise: network.listen is {network.listen}, an address that other members "
                "cannot give to their clients"
            )
        return self

    @model_validator(mode="after")
    def _slaves_reach_it(self) -> Self:
        if self.network.rocketmq_ha != OFF and not self.remoting.is_on:
            raise ValueError("network.rocketmq_ha needs remoting.listen: slaves read topics and groups there")
        return self

    @model_validator(mode="after")
    def _copies_have_no_queue_files(self) -> Self:
        if self.replication.is_on and self.consume_queue.mode not in {None, QueueMode.ROCKSDB}:
            raise ValueError(
                "replication.mode needs all queues in RocksDB: finish the migration of the queues first, without "
                "consume_queue.mode"
            )
        return self

    @property
    def tls_directory(self) -> Path:
        """Return the folder of the self-signed certificate."""
        return self.network.tls_directory or StorePaths(self.store.directory).tls

    @property
    def console_goes_around(self) -> str:
        """Return why the console must not run with these settings; empty if it may."""
        network = self.network
        if network.admin_client_ca is None or network.console_tls or self.security.asks_operators:
            return ""
        return (
            "network.admin_client_ca requires a certificate from operators, but the console would require nothing: "
            'set network.console_tls = true, security.admin_authentication = true, or network.console = "off"'
        )

    @property
    def operators_by_remoting(self) -> UnknownOperators:
        """Return whose operators' requests by remoting are served where messaging clients are not authenticated."""
        if self.security.asks_operators or self.network.admin_client_ca is not None:
            return UnknownOperators.NONE  # the admin port asks who calls: this would be a way around it
        return UnknownOperators.ALL if self.security.open_admin else UnknownOperators.OF_THIS_MACHINE

    @property
    def open_to_everybody(self) -> dict[str, str]:
        """Return the addresses, by the name of their setting, at which any other machine may administer the broker."""
        network = self.network
        if self.security.asks_operators:
            return {}
        asks_for_certificate = network.admin_client_ca is not None
        is_for_this_machine = self.security.admin_callers == "this-machine"
        ports = {
            "admin": None if asks_for_certificate or is_for_this_machine else network.admin,
            "console": None if asks_for_certificate and network.console_tls else network.console_address,
        }
        return {name: address for name, address in ports.items() if address and not is_loopback(address)}

    @model_validator(mode="after")
    def _operators_are_known(self) -> Self:
        if self.security.open_admin:
            return self
        for name, address in self.open_to_everybody.items():
            raise ValueError(
                f"network.{name} = {address} would let anybody who can reach it administer the broker: set "
                "security.authentication (users), network.admin_client_ca (certificates)"
                + (', security.admin_callers = "this-machine"' if name == "admin" else "")
                + ", or, if that is intended, security.open_admin = true"
            )
        return self

    @model_validator(mode="after")
    def _console_asks_as_much(self) -> Self:
        """Refuse a console that is set explicitly; `server.admin_port.console` leaves out one that is not."""
        network = self.network
        if network.console_address is not None and "console" in network.model_fields_set and self.console_goes_around:
            raise ValueError(self.console_goes_around)
        return self

    def tell_sources(self, sources: Mapping[str, str]) -> None:
        """Note the sources of values that are not defaults, by `section.key`."""
        self._sources.by_key.update(sources)

    def value_of(self, key: str) -> Any:
        """Return the value of `section.key`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def is_set(self, key: str) -> bool:
        """Return whether somebody has set `section.key`, to its default or to another value."""
        section, _, name = key.partition(".")
        return name in getattr(self, section).model_fields_set

    def may_be_left_out(self, key: str) -> bool:
        """Return whether the broker starts without this port if it is taken. A port that is set has to be free."""
        return key in _LEFT_OUT_IF_TAKEN and not self.is_set(key)

    def source_of(self, key: str) -> str:
        """Return the source of the value of `section.key`: `flags`, `environment`, `file` or `default`."""
        return self._sources.by_key.get(key, "default")

    def for_store(self) -> StoreSettings:
        """Return the store's settings. Raises Invalid for what only the store can check."""
        store = self.store
        return StoreSettings(
            root=store.directory,
            queue_mode=self.consume_queue.mode,
            queue_places=QueuePlaces(self.consume_queue.read, self.consume_queue.assign),
            doubled_topics=_tuple_or_none(self.consume_queue.double_write_topics),
            units_per_file=self.consume_queue.units_per_file,
            segment_size=store.segment_size,
            durability=store.durability,
            flush_interval_ms=store.flush_interval_ms,
            record_crc=store.record_crc,
            record_size_max=self.limits.body_size + RECORD_OVERHEAD_MAX,
            queue_flush_bytes=store.queue_flush_size,
            mapped_segments_max=store.mapped_segments_max,
            cached_queues_max=store.cached_queues_max,
            check_after_ms=self.transactions.check_after_ms,
            member=self.broker.name if self.cluster.is_on else None,
            has_copies=self.replication.is_on,
            index=IndexSettings(
                hash_files=self.index.hash_files,
                hash_slots=self.index.hash_slots,
                hash_items=self.index.hash_items,
                tiered=self.index.tiered,
                tiered_slots=self.index.tiered_slots,
                tiered_items=self.index.tiered_items,
                upload_to=self.index.upload_to,
                upload_options=tuple(self.index.upload_options.items()),
                keep_uploaded=self.index.keep_uploaded,
                slot_cache_bytes=self.index.slot_cache,
            ),
        )

    def for_expiry(self) -> ExpirySettings:
        """Return the settings of expiry. Raises Invalid for values that contradict each other."""
        expiry = self.expiry
        return ExpirySettings(
            retention_ms=int(expiry.retention_hours * 3_600_000),
            delete_when=frozenset(expiry.delete_when),
            clean_percent=expiry.clean_percent,
            force_percent=expiry.force_percent,
            refuse_percent=expiry.refuse_percent,
            force=expiry.force,
            segments_per_round=expiry.segments_per_round,
        )

    def for_wire(self) -> WireLimits:
        limits, delivery = self.limits, self.delivery
        return WireLimits(
            body_size_max=limits.body_size,
            user_properties_max=limits.properties_count,
            user_properties_size_max=limits.properties_size,
            message_group_size_max=limits.message_group_size,
            batch_size_max=delivery.batch_max,
            polling_min_ms=delivery.polling_min_ms,
            polling_max_ms=delivery.polling_max_ms,
            polling_reserve_ms=delivery.polling_reserve_ms,
            invisible_min_ms=delivery.invisible_time_min_ms,
            invisible_max_ms=delivery.invisible_time_max_ms,
        )

    def for_sealer(self) -> Sealer | None:
        """Return what opens users' secrets; None without a key. Raises Invalid that names the setting or the file."""
        security = self.security
        if security.key_file is not None:
            return Sealer(read_keys(security.key_file))
        if security.key is None:
            return None
        try:
            return Sealer([key.strip().encode() for key in security.key.get_secret_value().split(",")])
        except Invalid as cause:
            raise Invalid(f"security.key: {cause}") from None


def _tuple_or_none(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


class _Sources(BaseSettings, BrokerSettings):  # type: ignore[misc]  # two kinds of model_config, both dicts
    """Declare the same fields as a BaseSettings, which pydantic-settings reads. It has no instances."""


def load_settings(file: Path | None = None, flags: Mapping[str, Mapping[str, object]] | None = None) -> BrokerSettings:
    """Load the settings of this process. `flags`, nested by section, override the environment, which overrides `file`.

    Raises SettingsInvalid.
    """
    if file is not None and not file.is_file():
        raise SettingsInvalid(f"{file}: no such file")
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    mistakes = list(_unknown_variables())
    try:
        layers = {"file": _from_file(file), "environment": _from_environment(), "flags": flags or {}}
        for source, layer in layers.items():
            for section, values in layer.items():
                merged[section] = _over(merged.get(section, {}), values)
                sources[section] = source
                if isinstance(values, Mapping):
                    sources |= {f"{section}.{key}": source for key in values}
        settings = BrokerSettings.model_validate(merged)
        settings.tell_sources(sources)
        settings.for_store()
        settings.for_expiry()
    except ValidationError as cause:
        text = "" if file is None else file.read_text()
        mistakes += (_mistake(each, sources, file, text) for each in cause.errors())
    except Invalid as cause:
        mistakes.append(str(cause))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as cause:
        raise SettingsInvalid(f"{file}: {cause}") from cause
    except SettingsError as cause:
        raise SettingsInvalid(_mistaken_section(cause)) from cause
    if mistakes:
        raise SettingsInvalid("; ".join(mistakes))
    return settings


def _over(below: object, above: object) -> object:
    """Merge one section of two layers. A value that is not a section stays as it is, for validation to report."""
    if isinstance(below, Mapping):
        return {**below, **above} if isinstance(above, Mapping) else above
    return below


def _from_file(file: Path | None) -> Mapping[str, Any]:
    return {} if file is None else TomlConfigSettingsSource(_Sources, file)()


def _from_environment() -> Mapping[str, Any]:
    source = EnvSettingsSource(
        _Sources, env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="_", env_nested_max_split=1
    )
    return {section: _without_service_links(values) for section, values in source().items()}


def _unknown_variables() -> Iterator[str]:
    """Yield a mistake for each variable with our prefix whose section does not exist: pydantic ignores them."""
    for name in os.environ:
        rest = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES or ANY_SERVICE_LINK.fullmatch(rest):
            continue
        if not any(f"{rest}_".startswith(f"{section}_") for section in BrokerSettings.model_fields):
            yield f"{name}: {_unknown(name, map(variable_of, setting_keys()))}"


def _mistaken_section(cause: SettingsError) -> str:
    """Describe a variable that has the name of a whole section, and whose value is no JSON."""
    sections = [name for name in map(variable_of, BrokerSettings.model_fields) if name in os.environ]
    if not sections:
        return f"environment: {cause}"
    return (
        f"{' or '.join(sections)}: a section has to be a JSON object; a single setting has a variable of its own, such "
        "as QUARRY_STORE_DIRECTORY"
    )


def _without_service_links(values: object) -> object:
    if not isinstance(values, Mapping):
        return values
    return {key: value for key, value in values.items() if not SERVICE_LINK.fullmatch(key)}


def setting_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the name of each setting, as `section.key`, with its field."""
    for section, its in BrokerSettings.model_fields.items():
        assert isinstance(its.annotation, type)
        assert issubclass(its.annotation, Section)
        yield from ((f"{section}.{key}", field) for key, field in its.annotation.model_fields.items())


def setting_keys() -> Iterator[str]:
    """Yield the name of each setting, as `section.key`."""
    return (key for key, _ in setting_fields())


def variable_of(key: str) -> str:
    """Return the environment variable of `section.key`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def _mistake(error: Mapping[str, Any], sources: Mapping[str, str], file: Path | None, text: str) -> str:
    """Describe one error of pydantic, after its place: the line of the file, or the variable.

    `text` is that of the file. A rule that several settings of a section break together has no place.
    """
    location = [str(part) for part in error["loc"]]
    key = ".".join(location[:2])
    is_unknown = error["type"] == "extra_forbidden"
    said = _said(error)
    if len(location) == 1 and not is_unknown and error["type"] == "value_error":
        return said
    match sources.get(key):
        case "file":
            line = _line_of(key, text)
            place = f"{file}:{line}: " if line else f"{file}: "
        case "environment" if is_unknown:
            return f"{variable_of(key)}: {_unknown(variable_of(key), map(variable_of, setting_keys()))}"
        case "environment":
            place = f"{variable_of(key)}: "
        case _:
            place = ""
    if is_unknown:
        known = BrokerSettings.model_fields if len(location) == 1 else setting_keys()
        said = f"{key}: {_unknown(key, known)}"
    return place + said


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return that there is no setting of this name, and which one the user may have meant."""
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=NEAR_RATIO_MIN) or [
        each for each in names if each.startswith(name) or each.partition(".")[2] == name.partition(".")[2] != ""
    ]
    return f"unknown setting (did you mean {near[0]}?)" if len(near) == 1 else "unknown setting"


def _line_of(key: str, text: str) -> int | None:
    """Return the number of the line that sets `section.key`, or begins the section of that name; None if none does."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := FILE_TABLE.match(line):
            name = table = _plain(found[1])
        elif found := FILE_KEY.match(line):
            name = ".".join(filter(None, (table, _plain(found[1]))))
        else:
            continue
        if name == key:
            return number
    return None


def _plain(name: str) -> str:
    """Return a dotted name of a TOML file without quotes and spaces."""
    return ".".join(part.strip(" \"'") for part in name.split("."))


def _said(error: Mapping[str, Any], *within: str) -> str:
    key = ".".join(str(part) for part in (*within, *error["loc"])) or "settings"
    return f"{key}: {error['msg'].removeprefix('Value error, ')}"


def in_one_line(error: ValidationError, *within: str) -> str:
    """Return all errors in one line, each after its key, below `within` if given; values are not shown."""
    return "; ".join(_said(each, *within) for each in error.errors())
