"""Weights as a stream of flat buckets, whatever carries their bytes.

The trainer walks through its export once and each bucket is on its way before the next tensor is asked for
(:mod:`sender`); a worker takes the whole version into host memory, and only then is it checked and loaded by the core's
transfer engine (:mod:`receiver`, :mod:`source`). A device brings a :class:`~channel.Channel`: something that carries
flat bytes from rank 0 to everybody else. The driver's end is :mod:`transaction`.
"""
