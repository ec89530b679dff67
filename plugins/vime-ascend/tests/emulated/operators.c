/* The operators that torch_npu's own C++ calls. Everything else is refused: an operator that "succeeds" without doing
 * anything gives garbage that looks like a result. */
#include "emulated.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DIMENSIONS 16

typedef struct {
    int type, count;
    int64_t size[MOST_DIMENSIONS];
    int format;
} Shape;
typedef struct {
    void *place;
    size_t size;
} Buffer;

/* bytes of one element by ACL's number of the type; 0: not supported */
static const int WIDTHS[] = {4, 2, 1, 4, 1, 0, 2, 2, 4, 8, 8, 8, 1, 0, 0, 0, 8, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};

Shape *aclCreateTensorDesc(int type, int count, const int64_t *size, int format) {
    if (count > MOST_DIMENSIONS) return NULL;
    Shape *shape = calloc(1, sizeof *shape);
    shape->type = type, shape->count = count, shape->format = format;
    memcpy(shape->size, size, count * sizeof *size);
    return shape;
}
void aclDestroyTensorDesc(Shape *shape) { free(shape); }
Buffer *aclCreateDataBuffer(void *place, size_t size) {
    Buffer *buffer = malloc(sizeof *buffer);
    *buffer = (Buffer){place, size};
    return buffer;
}
Status aclDestroyDataBuffer(Buffer *buffer) { free(buffer); return OK; }
int aclGetTensorDescType(Shape *shape) { return shape->type; }
int aclGetTensorDescFormat(Shape *shape) { return shape->format; }
size_t aclGetTensorDescNumDims(Shape *shape) { return shape->count; }
Status aclGetTensorDescDimV2(Shape *shape, size_t axis, int64_t *size) { *size = shape->size[axis]; return OK; }
Handle aclopCreateAttr(void) { return malloc(8); }
void aclopDestroyAttr(Handle attribute) { free(attribute); }

static int64_t elements(const Shape *shape) {
    int64_t count = 1;
    for (int axis = 0; axis < shape->count; axis++) count *= shape->size[axis];
    return count;
}

static void fill(char *to, const char *value, int64_t count, int width) {
    for (int64_t i = 0; i < count; i++) memcpy(to + i * width, value, width);
}

/* zeros around the input; paddings are pairs (before, after) of each axis, in 4 or 8 bytes */
static void pad(const Shape *in, const char *from, const Shape *out, char *to, const Buffer *paddings, int width) {
    int wide = in->count && paddings->size / (2 * in->count) == 8;
    memset(to, 0, elements(out) * width);
    for (int64_t number = 0, count = elements(in); number < count; number++) {
        int64_t rest = number, place = 0, stride = 1;
        for (int axis = in->count - 1; axis >= 0; axis--) {
            int64_t index = rest % in->size[axis];
            int64_t before = wide ? ((int64_t *)paddings->place)[2 * axis] : ((int32_t *)paddings->place)[2 * axis];
            rest /= in->size[axis];
            place += (index + before) * stride;
            stride *= out->size[axis];
        }
        memcpy(to + place * width, from + number * width, width);
    }
}

Status aclopCompileAndExecute(const char *name, int ins, Shape **in, Buffer **from, int outs, Shape **out, Buffer **to,
                              Handle attribute, int engine, int compile, const char *path, Handle stream) {
    int type = out[0]->type;
    int width = type >= 0 && type < (int)(sizeof WIDTHS / sizeof *WIDTHS) ? WIDTHS[type] : 0;
    if (width && !strcmp(name, "ZerosLike")) {
        memset(to[0]->place, 0, elements(out[0]) * width);
        return OK;
    }
    if (width && !strcmp(name, "Fill") && ins == 2) {
        fill(to[0]->place, from[1]->place, elements(out[0]), width);
        return OK;
    }
    if (width && !strcmp(name, "PadV3") && ins >= 2) {
        pad(in[0], from[0]->place, out[0], to[0]->place, from[1], width);
        return OK;
    }
    fprintf(stderr, "emulated ACL: operator %s is not supported\n", name);
    return UNSUPPORTED;
}
Status aclopCompileAndExecuteV2(const char *name, int ins, Shape **in, Buffer **from, int outs, Shape **out, Buffer **to,
                                Handle attribute, int engine, int compile, const char *path, Handle stream) {
    return aclopCompileAndExecute(name, ins, in, from, outs, out, to, attribute, engine, compile, path, stream);
}
