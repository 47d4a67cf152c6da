"""Thin wires: gRPC, WebSocket, HTTP."""
