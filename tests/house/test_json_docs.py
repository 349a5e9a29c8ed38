"""Every command has a schema of what it prints with --json, and docs/json.md is made of them."""

from __future__ import annotations

import json

import jsonschema
import pytest
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.cli.schemas.shapes import commands as with_schema
from quarry_mq.cli.schemas.shapes import own_name, page, schema_of
from tests.commands import commands
from tests.house.source import ROOT

WITHOUT_JSON = {"serve", "demo", "console", "operator", "completion", "schema", "help"}
"""Servers, which say where they are and run until they are told to stop; and what is for people or shells alone."""


def test_every_command_has_a_schema_and_no_other() -> None:
    known = {own_name(path.removeprefix("quarry ")) for path, _ in commands()}
    assert set(with_schema()) == known - WITHOUT_JSON


@pytest.mark.parametrize("command", with_schema())
def test_schemas_are_good_and_strict(command: str) -> None:
    schema = schema_of(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    if command != "call":  # whose answers docs/admin-calls.md and proto/ describe
        assert not jsonschema.Draft202012Validator(schema).is_valid({"": None})


def test_the_page_is_made_of_the_schemas() -> None:
    made = "\n".join(page()) + "\n"
    assert (ROOT / "docs" / "json.md").read_text() == made, "quarry schema --page > docs/json.md"


def test_the_command_prints_them() -> None:
    def printed(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["schema", *words])
        assert result.exit_code == status, result.output
        return result.stderr if status else result.stdout

    assert json.loads(printed("topic", "list")) == schema_of("topic list")
    assert set(json.loads(printed())) == set(with_schema())
    assert json.loads(printed("dlq", "list"))["title"] == "quarry dlq list --json"
    assert "topic list" in printed("topic", "lst", status=2)
