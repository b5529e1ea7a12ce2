"""MQTT 3.1, 3.1.1 and 5.0, bytes <-> packets and the server's connection rules, without I/O.

Statements are cited by their number in the version at hand; sections in both versions by the number of 3.1.1, unless
noted otherwise.
"""
