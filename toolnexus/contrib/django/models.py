"""What the admin lists: open requests, which the runtime keeps and no table of Django's."""

from __future__ import annotations

from django.db import models


class OpenRequest(models.Model):
    """An open request, as far as the admin needs a model: for its place and its permissions.

    Who may `view_openrequest` sees what is asked; who may `change_openrequest` answers.
    """

    id = models.CharField(primary_key=True, max_length=200)

    class Meta:
        """It has no table."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name = "open request"

    def __str__(self) -> str:
        return str(self.id)
