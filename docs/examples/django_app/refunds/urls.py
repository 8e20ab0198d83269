"""The page and the API."""

from __future__ import annotations

from django.urls import path

from refunds import views

urlpatterns = [
    path("", views.page, name="page"),
    path("start", views.start_by_form, name="start"),
    path("answer", views.answer_by_form, name="answer"),
    path("runs", views.runs),
    path("runs/<path:run_id>", views.show_run),
    path("requests", views.list_requests),
    path("requests/<str:request_id>", views.answer_request),
]
