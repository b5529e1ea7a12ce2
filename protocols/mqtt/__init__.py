"""MQTT 3.1, 3.1.1 and 5.0, bytes <-> packets and the server's connection rules, without I/O.

Statements are cited by the number that they have in the version at hand; sections, where both versions have them, by
the number of 3.1.1 if nothing else is said.
"""
