/* The module cxlemu._native: its types, its functions, and the numbers that Python holds against its own. */
#include "cache.h"
#include "constants.h"
#include "interpreter.h"
#include "modules.h"
#include "python.h"

static PyObject *module_fold(PyObject *module, PyObject *args) {
    int dtype, redop;
    long long divisor;
    Py_buffer dst, a, b, c = {0};
    PyObject *third;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiw*y*y*OL", &dtype, &redop, &dst, &a, &b, &third, &divisor)) return NULL;
    bool ok = program_folds(dtype, redop) && divisor > 0 && a.len == dst.len && b.len == dst.len &&
              dst.len % program_item_bytes[dtype] == 0;
    if (third != Py_None) ok = PyObject_GetBuffer(third, &c, PyBUF_SIMPLE) == 0 && c.len == dst.len && ok;
    if (ok) fold_arrays(dtype, redop, dst.buf, a.buf, b.buf, c.obj ? c.buf : NULL, dst.len, divisor);
    PyBuffer_Release(&dst), PyBuffer_Release(&a), PyBuffer_Release(&b);
    if (c.obj) PyBuffer_Release(&c);
    if (!ok) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "operands differ in size, or there is no such reduction");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *module_past_caches_from(PyObject *module, PyObject *nbytes) {
    (void)module;
    const long long from = PyLong_AsLongLong(nbytes);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(program_past_caches_from(from));
}

static PyMethodDef module_methods[] = {
    {"past_caches_from", module_past_caches_from, METH_O,
     "past_caches_from(nbytes) -> nbytes: from this size on, arrays are stored past the caches; 0 asks."},
    {"fold", module_fold, METH_VARARGS, "fold(dtype, redop, dst, a, b, c or None, divisor): combine arrays of bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT, .m_name = "cxlemu._native",  .m_doc = "The native engine.",
    .m_size = -1,          .m_methods = module_methods,
};

static const constant constants[] = {
    CONSTANT(WRITE),        CONSTANT(WRITE_NT),
    CONSTANT(FLUSH),        CONSTANT(FENCE),
    CONSTANT(SIGNAL),       CONSTANT(WAIT),
    CONSTANT(WAIT_ALL),     CONSTANT(INVALIDATE),
    CONSTANT(READ),         CONSTANT(REDUCE),
    CONSTANT(COPY),         CONSTANT(REDUCE_LOCAL),
    CONSTANT(COMPUTE),      CONSTANT(RECORD),
    CONSTANT(AWAIT),        CONSTANT(SIGNAL_DATA),
    CONSTANT(WAIT_DATA),    CONSTANT(NOTHING),
    CONSTANT(BUFFER),       CONSTANT(REGION),
    CONSTANT(SUM),          CONSTANT(PROD),
    CONSTANT(MIN),          CONSTANT(MAX),
    CONSTANT(AVG),          CONSTANT(BAND),
    CONSTANT(BOR),          CONSTANT(BXOR),
    CONSTANT(FLAG_DIVIDE),  CONSTANT(ELIDE_FLUSH),
    CONSTANT(ELIDE_FENCE),  CONSTANT(ELIDE_INVALIDATE),
    CONSTANT(ELIDE_PUSH),   CONSTANT(ELIDE_FETCH),
    CONSTANT(DONE),         CONSTANT(IDLE),
    CONSTANT(MISMATCH),     CONSTANT(KERNEL),
    CONSTANT(LOCK_TIMEOUT), CONSTANT(OUT_OF_MEMORY),
    CONSTANT(LINK_DOWN),    CONSTANT(CARD_LOST),
    CONSTANT(POISONED),     CONSTANT(STOPPED),
    CONSTANT(DAMAGED),      CONSTANT(CLOCKS_TIMEOUT),
    CONSTANT(NO_DOORBELL),  CONSTANT(MODELLED_TIME),
    CONSTANT(LINE_BYTES),   CONSTANT(PAYLOAD_BYTES),
    CONSTANT(TAG_BITS),     CONSTANT(DTYPES),
    CONSTANT(EPOCHS_END),   CONSTANT(PAST_CACHES_BYTES),
    CONSTANT(UNREADABLE),   CONSTANT(MISPLACED),
    CONSTANT(FLAG_PLACES),  CONSTANT(PRESENT),
    CONSTANT(DIRTY),        CONSTANT(FLUSHED),
    CONSTANT(DAMAGE_BYTES), CONSTANT(LINK_ENTRY),
    CONSTANT(CARD_ENTRY),   CONSTANT(LINE_ENTRY),
    CONSTANT(KIND_SHIFT),   CONSTANT(WHERE_SHIFT),
};

PyMODINIT_FUNC PyInit__native(void) {
    static PyTypeObject *const types[] = {&program_type, &sequencer_type, &operation_type, &dispatch_cache_type,
                                          &verb_type};
    if (dispatch_import_numpy() < 0) return NULL;
    PyObject *module = make_module(&native_module);
    for (size_t k = 0; module && k < sizeof types / sizeof *types; k++)
        if (PyModule_AddType(module, types[k]) < 0) Py_CLEAR(module);
    if (module && (add_constants(module, constants, sizeof constants / sizeof *constants) < 0 ||
                   lines_add_to(module) < 0 || mapping_add_to(module) < 0 || bus_add_to(module) < 0 ||
                   host_lock_add_to(module) < 0 || pace_add_to(module) < 0 || pulse_add_to(module) < 0 ||
                   shadow_add_to(module) < 0 || program_add_to(module) < 0 || several_add_to(module) < 0 ||
                   courier_add_to(module) < 0 || borrowed_add_to(module) < 0 || rows_add_to(module) < 0))
        Py_CLEAR(module);
    return module;
}
