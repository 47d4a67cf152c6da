"""The edge: public JSON shapes, SSE framing and the error-mapping table."""
