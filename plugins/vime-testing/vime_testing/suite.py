"""What every suite is: a class of test methods, the object they are about, and messages that say what to mend.

Suites use nothing of pytest: a test that does not apply raises ``unittest.SkipTest``, which pytest understands, so the
same class is run by pytest and by ``vime plugins check``.
"""

from __future__ import annotations

import inspect
import unittest
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from vime_core.plugin import Plugins, Registry


def must(holds: object, message: str) -> None:
    """Fail with a message that says what is wrong and what to do."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(message)


def skip(reason: str) -> NoReturn:
    """This test does not apply here."""
    raise unittest.SkipTest(reason)


class Suite:
    """Subclass it, set the attributes, and its tests are yours.

    Attributes:
        plugin: what ``--plugin`` takes; None loads the core alone.
        target: the thing under test: its registered name, ``pkg.mod:obj``, ``./file.py:obj``, or the object itself.
    """

    plugin: ClassVar[str | None] = None
    target: ClassVar[Any] = None
    #: end of the registration hook's name ("rewards" of ``vime_register_rewards``)
    kind: ClassVar[str] = ""

    def loaded(self) -> Plugins:
        """The core and the plugin, and nothing that happens to be installed besides."""
        from vime_core.plugin import Plugins

        return Plugins.load([self.plugin] if self.plugin else [], autoload=False, strict=True, environ={})

    def given(self, name: str) -> Any:
        """A class attribute as it was written: a function is not bound to this object."""
        value = inspect.getattr_static(self, name)
        return value.__func__ if isinstance(value, staticmethod) else value

    def resolve(self) -> Any:
        """What ``target`` means.

        Raises:
            PluginError: it does not load, or is not what its kind asks for.
        """
        target, name = self.given("target"), type(self).__name__
        must(target is not None, f"{name}.target is not set: give a registered name, pkg.mod:obj or the object itself")
        if not isinstance(target, str):
            return target
        registry: Registry[Any] = self.loaded().registries()[f"vime_register_{self.kind}"]
        return registry.resolve(target)

    def test_no_check_was_changed(self) -> None:
        """A check that is overridden proves nothing. One that cannot hold is marked xfail with its reason."""
        bases = [base for base in type(self).__mro__ if base.__module__.startswith("vime_testing.")]
        checks = {name for base in bases for name in vars(base) if name.startswith("test_")}
        for place in type(self).__mro__:
            for name in checks & vars(place).keys() if place not in bases else ():
                must(
                    _excused(vars(place)[name]),
                    f"{place.__name__}.{name} replaces a check of the suite; remove it, or mark it with "
                    "pytest.mark.xfail(reason=...) and call super()",
                )


def _excused(function: Any) -> bool:
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in getattr(function, "pytestmark", ()))


def checks_of(suite: type[Suite]) -> list[str]:
    """Names of the tests in the order of their definition, those of the bases first."""
    names = [name for base in reversed(suite.__mro__) for name in vars(base) if name.startswith("test_")]
    return list(dict.fromkeys(names))
