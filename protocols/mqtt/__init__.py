"""MQTT 3.1.1 (OASIS standard, 29 October 2014): bytes <-> packets and the server's connection rules, without I/O."""
