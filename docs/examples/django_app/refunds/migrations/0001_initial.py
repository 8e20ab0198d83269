"""The table of refunds."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Make it."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Refund",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=100, unique=True)),
                ("customer", models.CharField(max_length=200)),
                ("amount", models.PositiveIntegerField()),
            ],
        )
    ]
