"""The engine: addresses, queues, routing, dispatch, transactions, logins. No I/O.

It decides; `vespiary_native` carries out. It is handed everything that touches the outside world as
a Protocol of `ports`, so its tests need neither disk nor socket.
"""
