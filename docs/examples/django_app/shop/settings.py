"""A Django project around an agent that asks before it refunds.

    pip install 'toolnexus[django]' gunicorn
    export DJANGO_SECRET_KEY=any-secret OPENAI_API_KEY=...
    python manage.py migrate
    python manage.py createsuperuser
    python manage.py runserver                      # or, with four workers:
    gunicorn -w 4 --preload shop.wsgi

Without a key: `python ../scripted_model.py`, whose address goes into OPENAI_BASE_URL.
The page is at /, the open requests are also at /admin/. Other settings of the environment:
OPENAI_BASE_URL for another endpoint; TOOLNEXUS_STORE for runs in another place; PGDATABASE,
with libpq's other variables, for the application's own tables in Postgres.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY")
if not SECRET_KEY:
    raise ImproperlyConfigured("set DJANGO_SECRET_KEY: all workers sign cookies with it")
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "toolnexus.contrib.django",
    "refunds",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "shop.urls"
LOGIN_URL = "admin:login"
STATIC_URL = "static/"  # the admin's style; runserver serves it
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db"},
}
if "PGDATABASE" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
    }

# Options of the runtime; what is an object is named by its path.
TOOLNEXUS = {
    "registry": "refunds.agents.AGENTS",
    "authorize": "refunds.agents.may_answer",
    "base_url": os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "default_model": "gpt-4o-mini",
    "store": os.environ.get("TOOLNEXUS_STORE", f"sqlite:///{BASE_DIR / 'runs.db'}"),
}
