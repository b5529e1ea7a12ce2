"""``sparkplug``: messages of Sparkplug B as an edge node's log has them, as a host application understands them.

``nodes`` remembers births and follows sequences, ``rows`` makes rows, ``function`` joins them, ``host`` says that this
node is a host application.
"""
