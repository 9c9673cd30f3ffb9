/* The frame hook (PEP 523): sees every Python frame of this thread before it runs.

In: a route per thread, `route(code, function)`.  Its answer decides about the frame: None (run it,
and do not ask about this code again), False (run it), a code object (run that instead, swapped in
place), or a callable (called with the function and its argument slots for the frame's result, or
RUN_FRAME to run it as it is after all).
While a route or what it returned runs, this thread's frames are not routed, and neither are those of
audit, trace and profile functions, which the interpreter calls at any moment.
The evaluation function is replaced only while some thread has a route, and the one found there is
restored and used in between. */
#ifndef JITSHAPE_FRAMES_H
#define JITSHAPE_FRAMES_H

#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#undef _PyGC_FINALIZED
#endif
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include "_tailcall.h"

typedef struct _PyInterpreterFrame Frame;

#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define AT_START(f) ((f)->instr_ptr == _PyCode_CODE(FRAME_CODE(f)))
#define FRAME_FUNCTION(f) ((f)->f_funcobj)
#define FRAME_SLOTS(c) ((c)->co_framesize)
#elif PY_VERSION_HEX >= 0x030C0000
#define FRAME_CODE(f) ((f)->f_code)
#define AT_START(f) ((f)->prev_instr == _PyCode_CODE(FRAME_CODE(f)) - 1)
#define FRAME_FUNCTION(f) ((f)->f_funcobj)
#define FRAME_SLOTS(c) ((c)->co_framesize)
#else
#define FRAME_CODE(f) ((f)->f_code)
#define AT_START(f) ((f)->prev_instr == _PyCode_CODE(FRAME_CODE(f)) - 1)
#define FRAME_FUNCTION(f) ((PyObject *)(f)->f_func)
#define FRAME_SLOTS(c) ((int)((c)->co_nlocalsplus + (c)->co_stacksize + FRAME_SPECIALS_SIZE))
#endif

/* Code objects a route does not want to hear of again; owned, open addressing. */
typedef struct {
    PyObject **table;
    size_t used, capacity; /* capacity: a power of two */
} CodeSet;

typedef struct Route {
    PyObject *callback;
    CodeSet ignored;
    struct Route *outer;
} Route;

static __thread Route *route; /* the innermost of this thread */
static __thread Route *spare; /* the one popped last: pushed again it knows what it ignores */
static __thread int routing;  /* a route or what it returned runs */
static Py_ssize_t hook_users;
static _PyFrameEvalFunction previous_eval;
static PyObject *run_frame;           /* what a handler returns to have the frame run as it is */
static PyCodeObject *return_argument; /* LOAD_FAST 0; RETURN_VALUE, without RESUME */
static Py_ssize_t frames_seen, frames_routed, frames_swapped, frames_without_room;

static PyObject **
code_set_find(CodeSet *set, PyObject *code)
{
    size_t i = ((uintptr_t)code >> 4) & (set->capacity - 1);
    while (set->table[i] != NULL && set->table[i] != code) {
        i = (i + 1) & (set->capacity - 1);
    }
    return &set->table[i];
}

static void
code_set_add(CodeSet *set, PyObject *code)
{
    if (2 * (set->used + 1) > set->capacity) {
        CodeSet larger = {NULL, set->used, set->capacity ? 2 * set->capacity : 64};
        larger.table = PyMem_Calloc(larger.capacity, sizeof(PyObject *));
        if (larger.table == NULL) {
            return; /* then it is asked about again */
        }
        for (size_t i = 0; i < set->capacity; i++) {
            if (set->table[i] != NULL) {
                *code_set_find(&larger, set->table[i]) = set->table[i];
            }
        }
        PyMem_Free(set->table);
        *set = larger;
    }
    PyObject **place = code_set_find(set, code);
    if (*place == NULL) {
        *place = Py_NewRef(code);
        set->used++;
    }
}

static void
code_set_free(CodeSet *set)
{
    for (size_t i = 0; i < set->capacity; i++) {
        Py_XDECREF(set->table[i]);
    }
    PyMem_Free(set->table);
}

static PyObject *
evaluate(PyThreadState *ts, Frame *f, int throwflag)
{
    _PyFrameEvalFunction eval = previous_eval != NULL ? previous_eval : _PyEval_EvalFrameDefault;
#if PY_VERSION_HEX >= 0x030C0000
    /* A call through the hook counts as one more C recursion than a plain one. */
    ts->c_recursion_remaining++;
    PyObject *result = eval(ts, f, throwflag);
    ts->c_recursion_remaining--;
    return result;
#else
    return eval(ts, f, throwflag);
#endif
}

static void
set_frame_code(Frame *f, PyCodeObject *code)
{
    PyCodeObject *old = FRAME_CODE(f);
    Py_INCREF(code);
#if PY_VERSION_HEX >= 0x030D0000
    f->f_executable = (PyObject *)code;
    f->instr_ptr = _PyCode_CODE(code);
    f->return_offset = 0;
#else
    f->f_code = code;
    f->prev_instr = _PyCode_CODE(code) - 1;
#if PY_VERSION_HEX >= 0x030C0000
    f->return_offset = 0;
#endif
#endif
    Py_DECREF(old);
}

/* The frame is the last thing on the data stack: grow it where it stands. */
static int
make_room(PyThreadState *ts, Frame *f, PyCodeObject *code)
{
    int need = FRAME_SLOTS(code), have = FRAME_SLOTS(FRAME_CODE(f));
    if (need <= have) {
        return 1;
    }
    PyObject **end = (PyObject **)f + have, **larger = (PyObject **)f + need;
    if (f->owner != FRAME_OWNED_BY_THREAD || ts->datastack_top != end ||
        larger >= ts->datastack_limit) {
        frames_without_room++;
        return 0;
    }
    ts->datastack_top = larger;
    return 1;
}

/* A generator is sized and named by its function, so that gets the code too. */
static int
swap_function(Frame *f, PyCodeObject *code)
{
    PyFunctionObject *old = (PyFunctionObject *)FRAME_FUNCTION(f);
    PyFunctionObject *new = (PyFunctionObject *)PyFunction_NewWithQualName(
        (PyObject *)code, f->f_globals, old->func_qualname);
    if (new == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_XSETREF(new->func_closure, Py_XNewRef(old->func_closure));
    Py_SETREF(new->func_name, Py_NewRef(old->func_name));
    f->f_builtins = new->func_builtins;
#if PY_VERSION_HEX >= 0x030C0000
    f->f_funcobj = (PyObject *)new;
#else
    f->f_func = new;
#endif
    Py_DECREF(old);
    return 1;
}

/* Make an unstarted frame run `code`, which has the same parameters in the same slots. */
static int
swap_code(PyThreadState *ts, Frame *f, PyCodeObject *code)
{
    int suspends = code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR);
    if (!make_room(ts, f, code) || (suspends && !swap_function(f, code))) {
        return 0;
    }
    int had = FRAME_CODE(f)->co_nlocalsplus, has = code->co_nlocalsplus;
    for (int i = had; i < has; i++) {
        f->localsplus[i] = NULL;
    }
    for (int i = has; i < had; i++) {
        Py_CLEAR(f->localsplus[i]);
    }
    f->stacktop = has;
    set_frame_code(f, code);
    frames_swapped++;
    return 1;
}

/* End an unstarted frame with a value, or with the exception that is set. */
static PyObject *
finish_frame(PyThreadState *ts, Frame *f, PyObject *value)
{
#if PY_VERSION_HEX < 0x030C0000
    return value; /* the caller clears and pops the frame */
#else
    /* The evaluator clears and pops it, so it must run something. */
    PyObject *error = value == NULL ? PyErr_GetRaisedException() : NULL;
    int n = FRAME_CODE(f)->co_nlocalsplus;
    for (int i = 0; i < n; i++) {
        Py_CLEAR(f->localsplus[i]);
    }
    if (!make_room(ts, f, return_argument)) {
        Py_FatalError("no room for one value in a frame");
    }
    f->localsplus[0] = value != NULL ? value : Py_NewRef(Py_None);
    f->stacktop = 1;
    set_frame_code(f, return_argument);
    PyObject *result = _PyEval_EvalFrameDefault(ts, f, 0);
    if (error != NULL) {
        Py_XDECREF(result);
        PyErr_SetRaisedException(error);
        return NULL;
    }
    return result;
#endif
}

static PyObject *
frame_arguments(Frame *f)
{
    PyCodeObject *code = FRAME_CODE(f);
    int n = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
            ((code->co_flags & CO_VARKEYWORDS) != 0);
    PyObject *slots = PyTuple_New(n);
    for (int i = 0; slots != NULL && i < n; i++) {
        PyObject *value = f->localsplus[i];
        PyTuple_SET_ITEM(slots, i, Py_NewRef(value != NULL ? value : Py_None));
    }
    return slots;
}

static PyObject *
run_routed(PyThreadState *ts, Frame *f, PyObject *answer)
{
    if (PyCode_Check(answer)) {
        swap_code(ts, f, (PyCodeObject *)answer); /* without room the frame runs as it is */
        Py_DECREF(answer);
        return evaluate(ts, f, 0);
    }
    PyObject *slots = frame_arguments(f), *result = NULL;
    frames_routed++;
    if (slots != NULL) {
        routing++;
        give_room(ROOM);
        result = PyObject_CallFunctionObjArgs(answer, FRAME_FUNCTION(f), slots, NULL);
        give_room(-ROOM);
        routing--;
        Py_DECREF(slots);
        result = finish(result); /* what it leaves to do is routed again */
    }
    Py_DECREF(answer);
    if (result == run_frame) { /* nothing was run: the frame is as it was */
        Py_DECREF(result);
        return evaluate(ts, f, 0);
    }
    return finish_frame(ts, f, result);
}

static PyObject *
hook(PyThreadState *ts, Frame *f, int throwflag)
{
    Route *r = route;
    if (r == NULL || routing || ts->tracing || throwflag || f->owner != FRAME_OWNED_BY_THREAD ||
        !AT_START(f)) {
        return evaluate(ts, f, throwflag);
    }
    PyObject *code = (PyObject *)FRAME_CODE(f);
    if (r->ignored.capacity != 0 && *code_set_find(&r->ignored, code) != NULL) {
        return evaluate(ts, f, throwflag);
    }
    frames_seen++;
    routing++;
    give_room(ROOM);
    PyObject *callback = Py_NewRef(r->callback);
    PyObject *answer = PyObject_CallFunctionObjArgs(callback, code, FRAME_FUNCTION(f), NULL);
    Py_DECREF(callback);
    give_room(-ROOM);
    routing--;
    if (answer == NULL) {
        return finish_frame(ts, f, NULL);
    }
    if (answer == Py_None || answer == Py_False) {
        if (answer == Py_None && route == r) {
            code_set_add(&r->ignored, code);
        }
        Py_DECREF(answer);
        return evaluate(ts, f, throwflag);
    }
    return run_routed(ts, f, answer);
}

/* ---- other tools that replaced the evaluation function: compiled functions stand back */

static PyObject *foreign_notice;

static inline int
is_foreign_evaluated(void)
{
    _PyFrameEvalFunction current =
        _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    return current != _PyEval_EvalFrameDefault && current != hook;
}

static PyObject *
set_foreign_notice(PyObject *module, PyObject *callable)
{
    Py_XSETREF(foreign_notice, Py_NewRef(callable));
    Py_RETURN_NONE;
}

/* Tell of it, once.  -1 with an error, or 0. */
static int
notice_foreign(void)
{
    PyObject *notice = foreign_notice;
    foreign_notice = NULL;
    PyObject *done = notice == NULL ? Py_NewRef(Py_None) : PyObject_CallNoArgs(notice);
    Py_XDECREF(notice);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *
push_route(PyObject *module, PyObject *callback)
{
    Route *r = spare;
    if (r != NULL && r->callback == callback) {
        spare = NULL;
    } else {
        r = PyMem_Calloc(1, sizeof *r);
        if (r == NULL) {
            return PyErr_NoMemory();
        }
        r->callback = Py_NewRef(callback);
    }
    r->outer = route;
    route = r;
    if (hook_users++ == 0) {
        PyInterpreterState *interp = PyInterpreterState_Get();
        _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
        if (current != hook) {
            previous_eval = current;
            _PyInterpreterState_SetEvalFrameFunc(interp, hook);
        }
    }
    Py_RETURN_NONE;
}

/* Without routes the interpreter's function is the former one. */
static void
restore_eval(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    /* Who was installed meanwhile has us as its previous one: then stay, passing through. */
    if (hook_users == 0 && _PyInterpreterState_GetEvalFrameFunc(interp) == hook) {
        _PyInterpreterState_SetEvalFrameFunc(interp, previous_eval);
    }
}

static PyObject *
pop_route(PyObject *module, PyObject *unused)
{
    Route *r = route;
    if (r == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "pop_route without push_route");
        return NULL;
    }
    route = r->outer;
    hook_users--;
    restore_eval();
    Route *former = spare;
    spare = r;
    if (former != NULL) {
        Py_DECREF(former->callback);
        code_set_free(&former->ignored);
        PyMem_Free(former);
    }
    Py_RETURN_NONE;
}

/* In a forked process: routes of threads that it does not have need no hook. */
static PyObject *
forget_other_threads(PyObject *module, PyObject *unused)
{
    hook_users = 0;
    for (Route *r = route; r != NULL; r = r->outer) {
        hook_users++;
    }
    restore_eval();
    Py_RETURN_NONE;
}

static PyObject *
hook_state(PyObject *module, PyObject *unused)
{
    int installed = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook;
    return Py_BuildValue("{sisnsnsnsn}", "installed", installed, "seen", frames_seen, "routed",
                         frames_routed, "swapped", frames_swapped, "without_room",
                         frames_without_room);
}

static int
make_return_argument(void)
{
    PyObject *scope = PyDict_New(), *done = NULL;
    if (scope != NULL &&
        PyDict_SetItemString(scope, "__builtins__", PyEval_GetBuiltins()) == 0) {
        done = PyRun_String("import opcode\n"
                            "def f(value): return value\n"
                            "text = [opcode.opmap['LOAD_FAST'], 0, opcode.opmap['RETURN_VALUE'], 0]\n"
                            "code = f.__code__.replace(co_code=bytes(text), co_stacksize=1)\n",
                            Py_file_input, scope, scope);
    }
    if (done != NULL) {
        return_argument = (PyCodeObject *)Py_XNewRef(PyDict_GetItemString(scope, "code"));
    }
    Py_XDECREF(done);
    Py_XDECREF(scope);
    return return_argument == NULL ? -1 : 0;
}

#endif
