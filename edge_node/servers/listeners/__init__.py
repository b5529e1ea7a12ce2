"""Listeners for clients of every protocol, their accounts, and MQTT over WebSocket."""
