"""The settings of the Django example, with what the environment of a test gives."""

from __future__ import annotations

import json
import os

from shop.settings import *  # noqa: F403 - settings are a module
from shop.settings import DATABASES, TOOLNEXUS

TOOLNEXUS.update(json.loads(os.environ["TEST_TOOLNEXUS"]))
# No secret of anybody's is kept by it, and it is fast.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
if "PGDATABASE" in os.environ:
    # A name by which the tests tell its connections from those of the store.
    DATABASES["default"]["OPTIONS"] = {"application_name": "django"}
else:
    DATABASES["default"]["NAME"] = os.environ["TEST_DATABASE"]
