"""Loaded by a Python program that finds this directory in ``PYTHONPATH``: its wall clock shows the test's clock file, live.

Any Python may load this, of another version or in another environment. So it needs the standard library alone, is written in words that
every version reads, and leaves the program on real time where anything is not as it should be. Monotonic time stays real. A
``sitecustomize`` of the user's own is loaded afterwards, as if this one were not there.
"""

import os
import sys

FILE = os.environ.get("PYTEST_GITTRIX_CLOCK", "")
OURS, REAL = {}, {}
_last = [0]


def now_ns():
    """The instant in the file, in nanoseconds since 1970; while the file cannot be read, that of the last time."""
    try:
        descriptor = os.open(FILE, os.O_RDONLY)
        try:
            _last[0] = parsed(os.read(descriptor, 64).decode("ascii").strip())
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        pass
    return _last[0]


def parsed(text):
    """Nanoseconds since 1970 of an instant such as 2030-01-01T00:00:00.000000Z."""
    if text[-1:] != "Z" or text[19:20] not in ".Z":
        raise ValueError(text)
    days = datetime.date(int(text[0:4]), int(text[5:7]), int(text[8:10])).toordinal() - 719163
    seconds = ((days * 24 + int(text[11:13])) * 60 + int(text[14:16])) * 60 + int(text[17:19])
    return seconds * 10**9 + int((text[20:-1] + "000000000")[:9])


def seconds_now():
    """The instant in whole seconds since 1970."""
    return now_ns() // 10**9


def local_now():
    """The instant as the local time."""
    return REAL[time, "localtime"](seconds_now())


def is_travelling():
    """Whether time-machine, of the program's own, decides what time it is."""
    return bool(getattr(sys.modules.get("time_machine"), "traveller_stack", None))


class Function(object):
    """A replacement for a function of ``time``. As an attribute of a class it takes no ``self``, unlike a function of Python."""

    def __init__(self, name, answer):
        self.__name__ = self.__qualname__ = name
        self.__module__ = "time"
        self.__doc__ = getattr(time, name).__doc__
        self._answer = answer

    def __call__(self, *args):
        return (REAL[time, self.__name__] if is_travelling() else self._answer)(*args)

    def __repr__(self):
        return "<built-in function %s>" % self.__name__

    def __reduce__(self):
        return self.__name__


def replace_functions():
    """Prepare the replacements for the functions of ``time``."""

    def real(name):
        return REAL[time, name]

    answers = {
        "time": lambda: now_ns() / 1e9,
        "time_ns": now_ns,
        "gmtime": lambda seconds=None: real("gmtime")(seconds_now() if seconds is None else seconds),
        "localtime": lambda seconds=None: local_now() if seconds is None else real("localtime")(seconds),
        "ctime": lambda seconds=None: real("ctime")(seconds_now() if seconds is None else seconds),
        "asctime": lambda *when: real("asctime")(*when or (local_now(),)),
        "strftime": lambda form, *when: real("strftime")(form, *when or (local_now(),)),
        "clock_gettime": lambda clock: now_ns() / 1e9 if clock == time.CLOCK_REALTIME else real("clock_gettime")(clock),
        "clock_gettime_ns": lambda clock: now_ns() if clock == time.CLOCK_REALTIME else real("clock_gettime_ns")(clock),
    }
    for name, answer in answers.items():
        if hasattr(time, name):
            REAL[time, name] = getattr(time, name)
            OURS[time, name] = Function(name, answer)


def replace_methods():
    """Prepare the replacements for the class methods of ``datetime`` and ``date``; the classes themselves stay."""
    moment, day, utc = datetime.datetime, datetime.date, datetime.timezone.utc

    def real(owner, name, cls):
        return REAL[owner, name].__get__(None, cls)

    def now(cls, tz=None):
        if is_travelling():
            return real(moment, "now", cls)(tz)
        seconds, rest = divmod(now_ns(), 10**9)
        return cls.fromtimestamp(seconds, tz).replace(microsecond=rest // 1000)

    def utcnow(cls):
        if is_travelling():
            return real(moment, "utcnow", cls)()
        if sys.version_info >= (3, 12):
            import warnings

            warnings.warn("datetime.datetime.utcnow() is deprecated; use datetime.datetime.now(datetime.UTC).", DeprecationWarning, 2)
        return now(cls, utc).replace(tzinfo=None)

    def today(cls):
        if is_travelling():
            return real(day, "today", cls)()
        return now(cls) if issubclass(cls, moment) else cls.fromtimestamp(seconds_now())

    for owner, method in ((moment, now), (moment, utcnow), (day, today)):
        method.__qualname__ = "%s.%s" % (owner.__name__, method.__name__)
        REAL[owner, method.__name__] = owner.__dict__[method.__name__]
        OURS[owner, method.__name__] = classmethod(method)


def put(functions, looked_up):
    """Put functions and methods in their places.

    A class of C takes no attributes from outside, so they go into the dictionary that it looks them up in. What was ``looked_up`` already
    is remembered elsewhere, too, and has to be forgotten there.
    """
    for (owner, name), function in functions.items():
        if owner is time:
            setattr(time, name, function)
        else:
            (attributes,) = gc.get_referents(owner.__dict__)
            attributes[name] = function
    if looked_up:
        import ctypes

        for owner in (datetime.date, datetime.datetime):
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def is_shown():
    """Whether what a program calls shows the clock."""
    utc = datetime.timezone.utc
    readings = time.time(), datetime.datetime.now(utc).timestamp(), datetime.datetime.today().timestamp()
    return all(abs(reading - seconds_now()) < 60 for reading in readings)


class BeforeTimeMachine(object):
    """Gives time-machine the real functions when it is loaded: it takes what it finds for functions of C, without a look."""

    def find_spec(self, name, path=None, target=None):
        """The specification that the other finders have, whose loader sees the real functions; None for any other module."""
        if name != "_time_machine":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        for step in ("create_module", "exec_module") if spec is not None else ():
            setattr(spec.loader, step, self.on_real_functions(getattr(spec.loader, step)))
        return spec

    def on_real_functions(self, step):
        """A step of loading a module, with the real functions in their places meanwhile."""

        def loading(*args):
            put(REAL, looked_up=True)
            try:
                if not all(type(getattr(*place)) is type(len) for place in REAL):
                    raise ImportError("the functions of the clock could not be given back")
                return step(*args)
            finally:
                put(OURS, looked_up=True)

        return loading


def freeze():
    """Show the clock file, or change nothing if that does not work."""
    if not now_ns():
        return
    replace_functions()
    replace_methods()
    put(OURS, looked_up=False)
    if not is_shown():
        put(REAL, looked_up=True)
        return
    sys.meta_path.insert(0, BeforeTimeMachine())


def load_the_users_own():
    """Load the ``sitecustomize`` that this one hides, if there is one, and take this directory out of the search path."""
    here = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if getattr(sys.exc_info()[1], "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if FILE and sys.version_info >= (3, 6):
    try:
        import datetime
        import gc
        import time

        freeze()
    except Exception:
        pass
load_the_users_own()
