"""`weft demo`: the whole fabric on one machine, on real sensor data, with a network cut and a killed edge."""
