"""nn.Module objects: attribute reads without inlining Module.__getattr__.

In: a module found at a source.  Out: the same values as the full protocol gives, guarded the
same way: the dicts `_parameters`, `_buffers` and `_modules` of the instance, by key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from jitshape.frontend.values.base import Value
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.objects import ObjectValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

STATE = ("_parameters", "_buffers", "_modules")
_GETATTR = nn.Module.__getattr__


class ModuleObject(ObjectValue):
    """A module whose class keeps nn.Module's attribute protocol gets it in Python here."""

    def getattr(self, m: Machine, name: str) -> Value:
        cls = self.cls
        for protocol in ("__getattr__", "__getattribute__"):
            m.guard_class(cls, protocol)
        quick = cls.__getattr__ is _GETATTR and cls.__getattribute__ is object.__getattribute__
        if quick and name not in STATE and not hasattr(cls, name):
            found = self._stored(m, name)
            if found is not None:
                m.type_lookup(cls, name)
                return found
        return m.default_getattr(self, name)

    def _stored(self, m: Machine, name: str) -> Value | None:
        """What the instance dict, or one of the three dicts of module state, holds."""
        own = self.attributes(m)
        found = own.get_named(m, name)
        for kind in STATE:
            if found is not None:
                return found
            state = own.get_named(m, kind)
            if isinstance(state, DictValue):
                found = state.lookup(m, m.const(name))
        return found
