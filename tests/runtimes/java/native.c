/* The native half of `Native.java`: libc's send and recv; a negative errno where they fail. */
#include <errno.h>
#include <jni.h>
#include <sys/socket.h>

JNIEXPORT jint JNICALL Java_Native_send(JNIEnv *env, jclass self, jint fd, jobject from, jint at, jint n)
{
    (void)self;
    char *bytes = (*env)->GetDirectBufferAddress(env, from);
    ssize_t sent = send(fd, bytes + at, n, MSG_NOSIGNAL);

    return sent < 0 ? -errno : sent;
}

JNIEXPORT jint JNICALL Java_Native_recv(JNIEnv *env, jclass self, jint fd, jobject to, jint at, jint n)
{
    (void)self;
    char *bytes = (*env)->GetDirectBufferAddress(env, to);
    ssize_t got = recv(fd, bytes + at, n, 0);

    return got < 0 ? -errno : got;
}
