"""Connections of this machine: sockets that listen, PROXY headers, TLS, bounds on half-open connections.

`http_server` bounds a server's idle connections, `accepting` takes connections of any protocol through their TLS
handshake, `reload` reads files again that have changed, and `tls` makes contexts of PEM files.
"""
