"""AMQP 1.0 at a listener: Proton's engine between our connections and our log."""
