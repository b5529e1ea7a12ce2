"""The MQTT broker beside Mosquitto, in the same run: shapes of real fleets, fixed rates, delivery, idle connections."""
