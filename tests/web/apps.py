"""The example applications as the tests serve them: each response tells who has served it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PID = "X-Worker-Pid"


def telling_pid(app: WSGIApplication) -> WSGIApplication:
    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
            return start_response(status, [*headers, (PID, str(os.getpid()))], error)

        return app(environ, start)

    return serve


def make_flask() -> WSGIApplication:
    from app import create_app

    return telling_pid(create_app())


def make_django() -> WSGIApplication:
    from shop.wsgi import application

    return telling_pid(application)
