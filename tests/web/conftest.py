"""Where a site has its files and its tables; the Django example's are made once and copied."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.postgres import Postgres
from tests.web.sites import DJANGO, Framework, prepare
from toolnexus.testing import ScriptedLlm

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the database of the Django example, with its tables and the user ann."""
    place = tmp_path_factory.mktemp("django")
    with ScriptedLlm() as nobody:
        prepare(DJANGO.environment(nobody, place, {}))
    return place


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Framework], Path]:
    """Give the folder of a site, with what its framework needs."""

    def give(framework: Framework) -> Path:
        if framework is DJANGO:
            shutil.copytree(request.getfixturevalue("prepared"), tmp_path, dirs_exist_ok=True)
        return tmp_path

    return give


@attrs.frozen
class Server:
    """A PostgreSQL server in which a database has what the Django example needs."""

    postgres: Postgres
    template: str

    def database(self) -> dict[str, str]:
        """Make a database of its own for a site; return the variables that lead to it."""
        return made(self.postgres, f"site{next(_numbers)}", self.template)


def made(postgres: Postgres, name: str, template: str) -> dict[str, str]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    known = conninfo_to_dict(postgres.conninfo())
    return {"PGDATABASE": name, "PGHOST": str(known["host"]), "PGUSER": str(known["user"])}


@pytest.fixture(scope="session")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with the tables of the Django example, and the user ann."""
    variables = made(postgres, "prepared", "template1")
    with ScriptedLlm() as nobody:
        environment = DJANGO.environment(nobody, tmp_path_factory.mktemp("django"), {})
        prepare({**environment, **variables})
    return Server(postgres, "prepared")
