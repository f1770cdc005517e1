"""Files of a container that its processes changed: beside the images of its tree, and back.

CRIU writes memory, and takes it that files are where they were. In another container that is so
for the image's own and for volumes; what was changed in the writable layer, and in /tmp and
/dev/shm where these are the container's or the pod's own, travels as a tar archive. It was made by
a tenant: only plain files, folders, links and pipes of it are laid out, and each step of each path
is opened without following a link.
"""

from .gathering import MOST_FILES, gather
from .laying import lay_out
from .note import ARCHIVE, NOTE, Note

__all__ = ["ARCHIVE", "MOST_FILES", "NOTE", "Note", "gather", "lay_out"]
