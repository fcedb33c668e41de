# Compiler flags, library look-up and the functions every CMakeLists.txt uses.
#
#   baton_layer(NAME [PURE] SOURCES a.c ... [DEPENDS bt_x ...] [LIBS lib ...])
#       static library; public includes = include/, private = its own folder
#   baton_test(NAME LABELS unit SOURCES t.c ... LIBS bt_x ... [ARGS ...])
#       cmocka test program registered with ctest

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
foreach(spec IN ITEMS ucx:UCX xxhash:libxxhash jansson:jansson curl:libcurl
        mhd:libmicrohttpd zmq:libzmq msgpack:msgpack cyaml:libcyaml
        yaml:yaml-0.1 nettle:nettle cmocka:cmocka ibverbs:libibverbs
        rdmacm:librdmacm uring:liburing hwloc:hwloc numa:numa)
    string(REPLACE ":" ";" pair ${spec})
    list(GET pair 0 id)
    list(GET pair 1 pc)
    if(pc STREQUAL "UCX")
        set(pc ucx)
    endif()
    if(pc STREQUAL "msgpack")
        pkg_search_module(PC_msgpack REQUIRED IMPORTED_TARGET
                          msgpack-c msgpack)
    else()
        pkg_check_modules(PC_${id} REQUIRED IMPORTED_TARGET ${pc})
    endif()
    add_library(ext_${id} ALIAS PkgConfig::PC_${id})
endforeach()
# libev ships no .pc file in Debian.
find_path(EV_INCLUDE ev.h REQUIRED)
find_library(EV_LIBRARY ev REQUIRED)
add_library(ext_ev INTERFACE)
target_include_directories(ext_ev SYSTEM INTERFACE ${EV_INCLUDE})
target_link_libraries(ext_ev INTERFACE ${EV_LIBRARY})

add_library(baton_flags INTERFACE)
target_compile_options(baton_flags INTERFACE
    -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wcast-qual -Wundef
    -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
    -Wwrite-strings -Wvla -Wformat=2 -Wimplicit-fallthrough
    -Wnull-dereference -Wswitch -Wdouble-promotion -fno-common
    -fno-strict-aliasing)
target_compile_definitions(baton_flags INTERFACE _GNU_SOURCE)
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -fno-omit-frame-pointer")
# Asserts stay on in release (conventions 16): no NDEBUG.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(baton_flags INTERFACE -U_FORTIFY_SOURCE
        -D_FORTIFY_SOURCE=2 -fstack-protector-strong
        -fstack-clash-protection -fcf-protection)
    add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -pie)
endif()
if(BATON_SANITIZE)
    # Lines are enough for a report, and build a fifth faster.
    add_compile_options(-fsanitize=${BATON_SANITIZE}
                        -fno-sanitize-recover=all -g1)
    # gcc says so by itself.
    if(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND BATON_SANITIZE MATCHES address)
        add_compile_definitions(__SANITIZE_ADDRESS__=1)
    endif()
    add_link_options(-fsanitize=${BATON_SANITIZE})
endif()
if(BATON_COVERAGE)
    add_compile_options(--coverage)
    add_link_options(--coverage)
endif()
if(BATON_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

set_property(GLOBAL PROPERTY BATON_PURE_LAYERS "")

function(baton_layer name)
    cmake_parse_arguments(L "PURE" "" "SOURCES;DEPENDS;LIBS;HEADERS" ${ARGN})
    add_library(${name} STATIC ${L_SOURCES})
    target_include_directories(${name}
        PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE baton_flags
                          PUBLIC ${L_DEPENDS} PRIVATE ${L_LIBS})
    if(L_HEADERS)
        target_sources(${name} PUBLIC FILE_SET HEADERS
            BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${L_HEADERS})
        set_target_properties(${name} PROPERTIES
                              VERIFY_INTERFACE_HEADER_SETS ON)
    endif()
    if(L_PURE)
        set_property(GLOBAL APPEND PROPERTY BATON_PURE_LAYERS ${name})
    endif()
endfunction()

function(baton_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBS;LABELS;ARGS;INCLUDES"
                          ${ARGN})
    if(NOT BATON_TESTS)
        return()
    endif()
    add_executable(${name} ${T_SOURCES})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/lib
                               ${T_INCLUDES})
    target_link_libraries(${name} PRIVATE baton_flags ${T_LIBS} ext_cmocka)
    target_compile_definitions(${name} PRIVATE
        BATON_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared"
        BATON_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}"
                         TIMEOUT ${T_TIMEOUT})
endfunction()

# A folder joins the build once it has a CMakeLists.txt.
function(baton_add dir)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/CMakeLists.txt)
        add_subdirectory(${dir})
    endif()
endfunction()
