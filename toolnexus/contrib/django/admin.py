"""The admin's list of open requests, with a form that answers each."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from toolnexus.contrib.django.access import runtime
from toolnexus.contrib.django.models import OpenRequest
from toolnexus.errors import ToolnexusError
from toolnexus.runtime.handle import PendingRequest
from toolnexus.suspension import Answer


class AnswerForm(forms.Form):
    """What a person says to one request. The button that is pressed says `ok`."""

    id = forms.CharField(widget=forms.HiddenInput)
    ok = forms.ChoiceField(choices=[("yes", "Yes"), ("no", "No")])
    data = forms.JSONField(required=False)
    reason = forms.CharField(required=False)

    def answer(self) -> Answer:
        """Return what was said; the form is valid."""
        said = self.cleaned_data
        return Answer(said["id"], said["ok"] == "yes", said["data"], said["reason"] or None)


class OpenRequestAdmin(admin.ModelAdmin):
    """Lists what is open, oldest first, `list_per_page` to a page.

    No more than `list_max` are read, however many are open.
    The user who answers is the principal.
    """

    list_max = 1_000
    change_list_template = "admin/toolnexus/openrequest/change_list.html"

    def get_urls(self) -> list[Any]:
        """Return the list, and where its forms are posted; there is no page of one request."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="toolnexus_openrequest_changelist"),
            path("answer/", view(require_POST(self.answer_view)), name="toolnexus_answer"),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what is open."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        found: tuple[PendingRequest, ...] | None = None
        try:
            found = runtime().pending(limit=self.list_max)
        except ToolnexusError as error:
            self.message_user(request, str(error), messages.ERROR)
        if found is not None and len(found) == self.list_max:
            only = f"These are the oldest {len(found):,}; there may be more."
            self.message_user(request, only, messages.WARNING)
        page = Paginator(found or (), self.list_per_page).get_page(request.GET.get(PAGE_VAR))
        context = {
            **self.admin_site.each_context(request),
            "title": "Open requests",
            "opts": self.opts,
            "rows": [_row(one) for one in page],
            "page": page,
            "is_known": found is not None,
            "can_answer": self.has_change_permission(request),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.change_list_template, context)

    def answer_view(self, request: HttpRequest) -> HttpResponse:
        """Take an answer. The run goes on behind it; what goes wrong is told as a message."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        form = AnswerForm(request.POST)
        if form.is_valid():
            try:
                runtime().future_resume(form.answer(), principal=request.user)
            except ToolnexusError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.message_user(request, "Answered.", messages.SUCCESS)
                said = "answered yes" if form.cleaned_data["ok"] == "yes" else "answered no"
                self.log_change(request, OpenRequest(form.cleaned_data["id"]), said)
        else:
            self.message_user(request, f"No answer: {form.errors.as_text()}", messages.ERROR)
        where = reverse(f"{self.admin_site.name}:toolnexus_openrequest_changelist")
        query = urlencode({key: value for key, value in request.GET.items() if key == PAGE_VAR})
        return HttpResponseRedirect(f"{where}?{query}" if query else where)

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Say no: only a tool asks."""
        return False

    def has_delete_permission(self, _request: HttpRequest, _obj: object = None) -> bool:
        """Say no: what is not wanted is declined."""
        return False


admin.site.register(OpenRequest, OpenRequestAdmin)


def _row(pending: PendingRequest) -> dict[str, Any]:
    schema = pending.schema
    return {
        "pending": pending,
        "request": pending.request,
        "arguments": json.dumps(pending.arguments, indent=2, ensure_ascii=False),
        "schema": None if schema is None else json.dumps(dict(schema), ensure_ascii=False),
    }
