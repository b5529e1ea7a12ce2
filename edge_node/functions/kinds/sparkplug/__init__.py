"""``sparkplug``: stored messages of Sparkplug B, interpreted as a host application does.

``nodes`` remembers births and follows sequences, ``rows`` makes rows, ``function`` joins them, ``host`` announces this
node as a host application.
"""
