"""Stands in for `mosquitto_pub` and `mosquitto_sub`, with the options that the documentation uses."""

import argparse
import sys
from pathlib import Path

from paho.mqtt import publish, subscribe

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("-h", dest="host", default="127.0.0.1")
parser.add_argument("-p", dest="port", type=int, default=1883)
parser.add_argument("-q", dest="qos", type=int, default=0)
parser.add_argument("-t", dest="topic", required=True)
parser.add_argument("-m", dest="message")
parser.add_argument("-C", dest="count", type=int, default=1)
parser.add_argument("-r", dest="retain", action="store_true")
parser.add_argument("-u", dest="user")
parser.add_argument("-P", dest="password")
given = parser.parse_args()
auth = {"username": given.user, "password": given.password} if given.user else None
where = {"hostname": given.host, "port": given.port, "auth": auth, "qos": given.qos}
if Path(sys.argv[0]).name == "mosquitto_pub":
    publish.single(given.topic, given.message, retain=given.retain, **where)
else:
    messages = subscribe.simple(given.topic, msg_count=given.count, **where)
    for message in messages if isinstance(messages, list) else [messages]:
        print(message.payload.decode())
