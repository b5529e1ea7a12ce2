"""The link between edges and a hub: latency to the hub's disk, bytes on the wire, and a bad line."""
