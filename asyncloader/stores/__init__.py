"""Bytes by URL and range, from wherever they are.

``store`` says what a store is, and ``router`` which one serves a URL. The clients are ``local``, ``http``,
``objects`` and ``hub``; around each but local files stands ``network``, and above all of them ``reading``.
"""
