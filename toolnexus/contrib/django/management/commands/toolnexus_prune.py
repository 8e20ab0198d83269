"""`manage.py toolnexus_prune`: delete runs that nobody has touched for long."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand

from toolnexus.contrib.django.access import runtime
from toolnexus.contrib.pruning import AGE_HELP, age, prune


class Command(BaseCommand):
    """Deletes old runs."""

    help = "Delete runs that nobody has touched for long."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take `--older-than`."""
        parser.add_argument(
            "--older-than", type=_age, required=True, metavar="AGE", help=AGE_HELP
        )

    def handle(self, *, older_than: timedelta, **_: Any) -> None:
        """Prune."""
        prune(runtime(), older_than, self.stdout.write)


def _age(text: str) -> timedelta:
    try:
        return age(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
