"""A node that is short of something takes only what matters."""

from __future__ import annotations

from msgspec.structs import replace

from mandor.model.node import Node
from mandor.placement.cycle import decide
from tests.scenarios.make import make_node
from tests.unit.placement.make import make_ask, make_profile, make_table
