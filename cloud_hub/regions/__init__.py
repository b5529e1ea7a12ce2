"""Links to other regions: what a hub's log receives from edges is passed on to the hubs of other clusters.

A region is a cluster with a store of its own. For each region and shard, the process that owns the shard follows the
shard's log (``source``) and sends the batches as they are stored, under their own lanes, over a link as an edge has one
(``link``). The region acknowledges what is durable there, and the position in the log follows
(``weft.storage.chunk_log``).
"""
