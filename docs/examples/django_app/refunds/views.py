"""The views: an API of JSON for programs, a page for people. Both are for who has logged in."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from toolnexus import Answer, Handle, ToolnexusError
from toolnexus.contrib.django import runtime, start
from toolnexus.contrib.web import answer_from, request_dict, status_of

View = Callable[..., HttpResponse]

SHOWN = 10  # how many runs a browser's page has


def report(handle: Handle) -> dict[str, Any]:
    """Say how a run stands; one that is done is closed, and stays readable."""
    rt = runtime()
    result = rt.wait_on(handle, timeout=0)
    is_running = result.status == "timeout"  # of the wait, not of the run
    if result.status == "done":
        rt.close(handle)
    return {
        "id": handle.id,
        "status": "running" if is_running else result.status,
        "text": "" if is_running else result.text,
        "open": [request_dict(one) for one in rt.pending(under=handle)],
    }


def report_by_id(run_id: str) -> dict[str, Any] | None:
    """Say how a run stands, also one whose agent is gone by now; None where it was pruned."""
    try:
        handle = runtime().handle(run_id)
        return None if handle is None else report(handle)
    except ToolnexusError as error:
        return {"id": run_id, "status": "error", "text": str(error), "open": []}


# -- the API ----------------------------------------------------------------------------------
# Its client logs in, and sends the token of the cookie `csrftoken` as X-CSRFToken.


def api(view: View) -> View:
    """Let in who has logged in, and tell errors as JSON."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return JsonResponse({"error": "log in first"}, status=401)
        try:
            return view(request, *args, **kwargs)
        except json.JSONDecodeError as error:
            return JsonResponse({"error": f"the body is no JSON: {error}"}, status=400)
        except ToolnexusError as error:
            return JsonResponse({"error": str(error)}, status=status_of(error))

    return guarded


@require_http_methods(["GET", "POST"])
@api
def runs(request: HttpRequest) -> HttpResponse:
    """List runs, or start one. It begins once the transaction, if any, is committed."""
    if request.method == "GET":
        views = runtime().list()
        return JsonResponse({"runs": [{"id": v.id, "state": v.state.value} for v in views]})
    given = json.loads(request.body)
    prompt = given.get("prompt") if isinstance(given, dict) else None
    if not isinstance(prompt, str) or not prompt:
        return JsonResponse({"error": "give a prompt, a text"}, status=400)
    return JsonResponse(report(start("desk", prompt)), status=202)


@require_GET
@api
def show_run(request: HttpRequest, run_id: str) -> HttpResponse:
    """Say how a run stands."""
    handle = runtime().handle(run_id)
    if handle is None or handle.parent is None:
        return JsonResponse({"error": "there is no such run"}, status=404)
    return JsonResponse(report(handle))


@require_GET
@api
def list_requests(request: HttpRequest) -> HttpResponse:
    """List what is open."""
    return JsonResponse({"open": [request_dict(one) for one in runtime().pending()]})


@require_POST
@api
def answer_request(request: HttpRequest, request_id: str) -> HttpResponse:
    """Take an answer. The run goes on without this request."""
    answer = answer_from(request_id, json.loads(request.body))
    runtime().future_resume(answer, principal=request.user)
    return JsonResponse({"id": request_id, "ok": answer.ok})


# -- the page ---------------------------------------------------------------------------------


@require_GET
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """Show what this browser has started, and what is open with a form that answers each."""
    reports = map(report_by_id, request.session.get("runs", []))
    runs = [one for one in reports if one is not None]
    return render(request, "refunds/page.html", {"runs": runs, "open": runtime().pending()})


@require_POST
@login_required
def start_by_form(request: HttpRequest) -> HttpResponse:
    """Start a run."""
    prompt = request.POST.get("prompt", "")
    if prompt:
        run_id = start("desk", prompt).id
        request.session["runs"] = [run_id, *request.session.get("runs", [])][:SHOWN]
        messages.success(request, f"started {run_id}")
    return HttpResponseRedirect(reverse("page"))


@require_POST
@login_required
def answer_by_form(request: HttpRequest) -> HttpResponse:
    """Take an answer."""
    said = request.POST
    if not said.get("id"):
        raise Http404
    answer = Answer(said["id"], said.get("ok") == "yes", reason=said.get("reason") or None)
    try:
        runtime().future_resume(answer, principal=request.user)
    except ToolnexusError as error:
        messages.error(request, str(error))
    return HttpResponseRedirect(reverse("page"))
