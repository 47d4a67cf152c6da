"""The second gRPC back end: the same handlers on grpclib's HTTP/2 instead of grpcio's core.

Everything runs in the event loop, so a write costs no thread. What is written to a connection in
one iteration of the loop leaves in one write, and DATA frames are made without h2's bookkeeping
where windows and the frame size allow it (`fast_data`). The handlers are grpcio's objects, made
from the generated service descriptions: what a call does is written once (`transports.grpc`).
"""
