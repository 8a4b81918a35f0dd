"""Who keeps the units of a service on this host."""

from __future__ import annotations

from kdeploy_agent.ground import systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import bystander, supervised, systemd
from kdeploy_agent.keeping.units import Units


def of(layout: Layout) -> Units:
    """systemd where it runs and we are root, else our supervisor; beside it, where it is live, what was adopted."""
    own = systemd.Systemd(layout) if systemctl.keeps_units() else supervised.Supervised(layout)
    return bystander.beside(layout, own)
