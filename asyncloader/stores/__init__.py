"""Bytes by key and range, from local disk, HTTP servers and object stores."""
