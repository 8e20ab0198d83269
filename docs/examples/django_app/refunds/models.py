"""Refunds that were made."""

from __future__ import annotations

from django.db import models


class Refund(models.Model):
    """One refund. The key is that of the call that made it, so that no call makes two."""

    key = models.CharField(max_length=100, unique=True)
    customer = models.CharField(max_length=200)
    amount = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"${self.amount} to {self.customer}"
