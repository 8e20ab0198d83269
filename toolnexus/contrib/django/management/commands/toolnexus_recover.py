"""`manage.py toolnexus_recover`: go on with runs whose process is dead."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from toolnexus.contrib.django.access import runtime
from toolnexus.contrib.recovering import EVERY_HELP, LIMIT_HELP, recover


class Command(BaseCommand):
    """Takes runs over and sees them through."""

    help = "Go on with runs whose process has died in the middle of a turn."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take `--every` and `--limit`."""
        parser.add_argument("--every", type=float, metavar="SECONDS", help=EVERY_HELP)
        parser.add_argument("--limit", type=float, metavar="SECONDS", help=LIMIT_HELP)

    def handle(self, *, every: float | None, limit: float | None, **_: Any) -> None:
        """Recover."""
        recover(runtime(), every, self.stdout.write, limit)
