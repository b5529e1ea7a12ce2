"""Operations of the hub's API, with the types of their bodies and answers: what client, commands
and hub share."""
