"""What the broker keeps across restarts: retained messages, sessions, and the log read again for who was away."""

from weft.edge_node.sessions.store.broker_state import BrokerState
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings

__all__ = ["BrokerState", "StateCounters", "StateSettings"]
