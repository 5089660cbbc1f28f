"""The index beside a tar, as ``wds2idx`` makes it."""

from __future__ import annotations

import io
import tarfile


def idx_of(content: bytes, version: str = "v1.2") -> bytes:
    """As ``wds2idx`` writes it: offsets and sizes of bodies, in order, without files that have no key."""
    samples: list[tuple[str, list[str]]] = []
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            key, _, extension = base.partition(".")
            if not member.isreg() or not key:
                continue
            words = [extension, str(member.offset_data), str(member.size)]
            words += [member.name] if version == "v1.2" else []
            if not samples or samples[-1][0] != folder + slash + key:
                samples.append((folder + slash + key, []))
            samples[-1][1].extend(words)
    lines = [f"{version} {len(samples)}", *(" ".join(words) for _, words in samples)]
    return ("\n".join(lines) + "\n").encode()
