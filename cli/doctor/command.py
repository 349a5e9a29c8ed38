"""`quarry doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.doctor.findings import Finding, Verdict, fault, fine
from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import json_line
from quarry_mq.cli.terminal.text import one_line, say

_MARKS: Final = {
    Verdict.FINE: "ok     ",
    Verdict.UNKNOWN: "unknown",
    Verdict.WARNING: "WARNING",
    Verdict.FAULT: "FAULT  ",
}
"""Words for the verdicts, so that the output can be read without colours."""

_COLOURS: Final = {
    Verdict.FINE: typer.colors.GREEN,
    Verdict.UNKNOWN: None,
    Verdict.WARNING: typer.colors.YELLOW,
    Verdict.FAULT: typer.colors.RED,
}
_CHECK_WIDTH: Final = 18


def doctor(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="QUARRY_CONFIG", metavar="FILE", help="The broker's settings (TOML)."),
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", metavar="DIR", help="Directory of the store.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 for warnings, too.")] = False,
    as_json: Json = False,
) -> None:
    """Check a broker, its settings, its store and its machine for problems, and suggest fixes.

    Run it where the broker runs, as its user, with its settings: before a start, or beside the broker. Nothing is
    changed. Exit status 0: no fault, 1: a fault.
    """
    counts = dict.fromkeys(Verdict, 0)
    for finding in _findings(config, store, chosen()):
        counts[finding.verdict] += 1
        _show(finding, as_json=as_json)
    if not as_json:
        faults, warnings = counts[Verdict.FAULT], counts[Verdict.WARNING]
        say(f"{_number(faults, 'fault')}, {_number(warnings, 'warning')}")
    is_ill = counts[Verdict.FAULT] or (strict and counts[Verdict.WARNING])
    raise typer.Exit(Exit.FINDING if is_ill else Exit.FINE)


def _findings(config: Path | None, store: Path | None, context: Context | None) -> Iterator[Finding]:
    # not at the top: the modules that a broker needs take a while to load
    from quarry_mq.cli.doctor import certificate, live, machine, network, places
    from quarry_mq.protocol.clock import SystemClock
    from quarry_mq.server.settings.broker_settings import SettingsInvalid, load_settings

    yield from machine.versions()
    yield from machine.memory()
    yield from machine.clock_is_kept()
    try:
        settings = load_settings(config, {} if store is None else {"store": {"directory": store}})
        settings.for_store()
    except (SettingsInvalid, OSError) as error:
        yield fault("settings", str(error), "correct it; the other checks were skipped")
        return
    yield fine("settings", str(config) if config is not None else "no file: defaults and environment variables")
    clock = SystemClock()
    answer = live.ask(settings, context)
    last = live.followed(settings, clock)
    is_served = live.serves(answer, settings) or last is not None
    yield from machine.descriptors(settings)
    yield from machine.maps(settings)
    yield from places.disk(settings)
    yield from places.file_system(settings)
    yield from places.sync_time(settings)
    yield from places.permissions(settings)
    yield from places.secrets(settings)
    yield from places.store_times(settings, clock)
    yield from certificate.certificate(settings, clock)
    yield from live.copy(last)
    if last is None or answer is not None:
        yield from live.broker(answer, settings)
    concerns = list(live.concerns(answer, settings, context))
    yield from concerns
    if answer is None and last is None:
        yield from network.ports(settings)
    elif answer is not None:
        authority = None if context is None else context.tls_ca
        is_told = any(each.verdict is Verdict.FAULT for each in concerns)
        yield from live.health(settings, clock, authority, is_told=is_told)
    yield from network.operators(settings)
    yield from network.advertised(settings, context, is_served=answer is not None)
    if not is_served:
        yield from places.users(settings)
    yield from places.store(settings, is_served=is_served)


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        fields = {**finding._asdict(), "verdict": finding.verdict.value}
        say(json_line(fields))
        return
    mark = typer.style(_MARKS[finding.verdict], fg=_COLOURS[finding.verdict])
    say(f"  {finding.check:<{_CHECK_WIDTH}}  {one_line(finding.seen)}", before=mark)
    if finding.advice:
        say(f"{'':>{len(_MARKS[finding.verdict])}}  {'':<{_CHECK_WIDTH}}  -> {one_line(finding.advice)}")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
